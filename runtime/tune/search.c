/* The search itself: every candidate is checked, then measured in interleaved rounds while the
 * field is halved. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune/stats.h"
#include "tune/sweep.h"

/* One sample of one candidate in one round: shorter ones measure the clock, longer ones only cost
 * time. */
#define SAMPLE_NS_MIN 200e3
#define SAMPLE_NS_MAX 5e6
#define PILOT_NS      300e3 /* in the first round */
#define CALLS_MIN     3u
#define CALLS_MAX     16384u

#define TOO_SLOW  10.0 /* times the best: dropped at once */
#define FINALISTS 3u   /* halving stops here */

typedef struct run {
    rfi_sweep *w;
    double until; /* of the phase that is on, as the next in rfi_seconds() */
    double rounds_until;
    double done, share; /* of the session: before this shape, and this shape's */
    uint64_t random;
} run;

static uint64_t draw(run *r)
{
    /* xorshift64: order of candidates and seeds need no better */
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

static rfi_outcome outcome_of(const rfi_answer *a)
{
    if (a->code == RF_OK)
        return a->wrong ? RFI_WRONG : RFI_OK;
    return a->code == RF_E_TIMEOUT || a->code == RF_E_POISONED ? RFI_TIMEOUT : RFI_LAUNCH;
}

/* A candidate that hung took a deadline, which no shape's part of the budget foresees. */
static void forgive(run *r, double seconds)
{
    const rfi_session *s = r->w->session;
    double end = s->start + s->options.budget_ms * 1e-3;
    r->until = r->until + seconds < end ? r->until + seconds : end;
    r->rounds_until = r->rounds_until + seconds < end ? r->rounds_until + seconds : end;
}

static rf_result give(run *r, rfi_order *o, const rfi_tune_trial *t, rfi_answer *a, rf_error *err)
{
    rfi_session *s = r->w->session;
    double within = r->w->planned > 0 ? r->w->spent / r->w->planned : 0;
    double elapsed = rfi_seconds() - s->start, left = s->options.budget_ms * 1e-3 - elapsed;
    o->shape = r->w->shape;
    o->done = r->done + r->share * (within < 1 ? within : 1);
    o->eta_seconds = o->done > 0 ? elapsed / o->done * (1 - o->done) : left;
    if (o->eta_seconds > left)
        o->eta_seconds = left;
    if (o->eta_seconds < 0)
        o->eta_seconds = 0; /* it is late already */
    if (t) {
        memcpy(o->hash, t->variant->hash, sizeof o->hash);
        o->grid = t->grid;
    }
    double begin = rfi_seconds();
    rf_result rc = rfi_session_order(s, o, a, err);
    if (rc == RF_OK && outcome_of(a) == RFI_TIMEOUT)
        forgive(r, rfi_seconds() - begin);
    return rc;
}

/* A rank that was stopped, or got no processor, leaves its peers waiting as a candidate does that
 * hangs. Now it is there again, or this would have been the end of the session: what hangs a second
 * time does so by itself. */
static rf_result try(run *r, rfi_order *o, const rfi_tune_trial *t, rfi_answer *a, rf_error *err)
{
    rf_result rc = give(r, o, t, a, err);
    return rc == RF_OK && outcome_of(a) == RFI_TIMEOUT ? give(r, o, t, a, err) : rc;
}

/* A variant that hung hangs with its other grids too, and each costs a deadline. */
static void drop_siblings(rfi_sweep *w, const rfi_tune_trial *hung)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->trials[i].variant == hung->variant && w->trials[i].state < RFI_SETTLED)
            rfi_sweep_settle(w, &w->trials[i], RFI_DROPPED);
}

static void fail(rfi_sweep *w, rfi_tune_trial *t, rfi_outcome outcome)
{
    rfi_sweep_settle(w, t, outcome);
    if (outcome == RFI_TIMEOUT)
        drop_siblings(w, t);
}

static int out_of_time(const run *r)
{
    return rfi_seconds() > r->until;
}

/* Trials in this state, as they were enumerated. Returns how many. */
static size_t collect(const run *r, rfi_trial_state state, rfi_tune_trial **field)
{
    size_t n = 0;
    for (size_t i = 0; i < r->w->n; i++)
        if (r->w->trials[i].state == state)
            field[n++] = &r->w->trials[i];
    return n;
}

static int more_promising(const void *a, const void *b)
{
    const rfi_tune_trial *x = *(rfi_tune_trial *const *)a, *y = *(rfi_tune_trial *const *)b;
    if (x->promise != y->promise)
        return x->promise < y->promise ? 1 : -1;
    return (x > y) - (x < y);
}

/* So that what the time does not suffice for is what matters least. */
static size_t collect_by_promise(const run *r, rfi_trial_state state, rfi_tune_trial **field)
{
    size_t n = collect(r, state, field);
    qsort(field, n, sizeof *field, more_promising);
    return n;
}

/* In an order of their own each time, so that drift and neighbours hit all. */
static size_t collect_shuffled(run *r, rfi_trial_state state, rfi_tune_trial **field)
{
    size_t n = collect(r, state, field);
    for (size_t i = n; i > 1; i--) {
        size_t k = draw(r) % i;
        rfi_tune_trial *t = field[k];
        field[k] = field[i - 1], field[i - 1] = t;
    }
    return n;
}

/* One at least. */
static rf_result check(run *r, rfi_tune_trial **field, rf_error *err)
{
    size_t n = collect_by_promise(r, RFI_MISSING, field);
    for (size_t i = 0; i < n && (i == 0 || !out_of_time(r)); i++) {
        rfi_tune_trial *t = field[i];
        if (t->state != RFI_MISSING)
            continue; /* dropped with a sibling */
        rfi_order o = {.kind = RFI_ORDER_CHECK, .seed = draw(r)};
        rfi_answer a;
        rf_result rc = try(r, &o, t, &a, err);
        if (rc != RF_OK)
            return rc;
        r->w->spent++;
        t->guess_ns = a.ns;
        if (outcome_of(&a) == RFI_OK)
            t->state = RFI_CHECKED;
        else
            fail(r->w, t, outcome_of(&a));
    }
    return RF_OK;
}

static uint32_t calls_for(double sample_ns, double call_ns)
{
    double calls = call_ns > 0 ? sample_ns / call_ns : CALLS_MIN;
    return calls < CALLS_MIN ? CALLS_MIN : calls > CALLS_MAX ? CALLS_MAX : (uint32_t)calls;
}

/* The median so far: of an even number the faster one in the middle, and with one sample the time
 * of the check if that was faster, since a rank that was held up once makes no slow candidate. */
static double guess(const rfi_tune_trial *t, double *scratch)
{
    if (t->n == 1)
        return fmin(t->guess_ns, t->samples[0]);
    memcpy(scratch, t->samples, t->n * sizeof *scratch);
    rfi_stats_of(scratch, t->n); /* sorts it */
    return scratch[(t->n - 1) / 2];
}

/* Every candidate of `field` once, or as many as the time suffices for, but one at least. */
static rf_result round_of(run *r, rfi_tune_trial **field, size_t n, double sample_ns,
                          double *scratch, rf_error *err)
{
    for (size_t i = 0; i < n && (i == 0 || !out_of_time(r)); i++) {
        rfi_tune_trial *t = field[i];
        if (t->state >= RFI_SETTLED)
            continue; /* dropped with a sibling */
        rfi_order o = {.kind = RFI_ORDER_MEASURE, .calls = calls_for(sample_ns, t->guess_ns)};
        rfi_answer a;
        rf_result rc = try(r, &o, t, &a, err);
        if (rc != RF_OK)
            return rc;
        r->w->spent++;
        if (a.code != RF_OK) {
            fail(r->w, t, outcome_of(&a));
            continue;
        }
        t->state = RFI_RUNNING;
        t->samples[t->n++] = a.ns;
        t->order_index = (uint32_t)i;
        t->guess_ns = guess(t, scratch);
    }
    return RF_OK;
}

static int faster(const void *a, const void *b)
{
    double x = (*(rfi_tune_trial *const *)a)->guess_ns, y = (*(rfi_tune_trial *const *)b)->guess_ns;
    return (x > y) - (x < y);
}

static size_t half(size_t n)
{
    size_t keep = (n + 1) / 2;
    return keep > FINALISTS ? keep : n < FINALISTS ? n : FINALISTS;
}

/* Trials in this state whose variants have these flags. */
static size_t collect_flagged(const run *r, rfi_trial_state state, unsigned flags,
                              rfi_tune_trial **field)
{
    size_t n = collect(r, state, field), kept = 0;
    for (size_t i = 0; i < n; i++)
        if (field[i]->variant->flags == flags)
            field[kept++] = field[i];
    return kept;
}

/* Time of the best that a caller who admits `flags` may have instead. */
static double best_for(const rfi_sweep *w, unsigned flags)
{
    double best = INFINITY;
    for (size_t i = 0; i < w->n; i++) {
        const rfi_tune_trial *t = &w->trials[i];
        int ok = t->state >= RFI_SETTLED && t->result.outcome == RFI_OK;
        double ns = ok ? t->result.median_ns : t->state == RFI_RUNNING ? t->guess_ns : INFINITY;
        if (!(t->variant->flags & ~flags) && ns < best)
            best = ns;
    }
    return best;
}

/* After round 1 the hopeless go, after every second round half of the rest; the baseline never.
 * Each kind of opt-in is a field of its own: callers that do not admit a faster kind need the best
 * of the others. */
static void cull(run *r, rfi_tune_trial **field, uint32_t rounds_done)
{
    for (unsigned flags = 0; flags <= RFI_OPT_INS; flags++) {
        size_t n = collect_flagged(r, RFI_RUNNING, flags, field);
        qsort(field, n, sizeof *field, faster);
        double best = best_for(r->w, flags);
        size_t keep = rounds_done % 2 == 0 ? half(n) : n;
        while (keep > 0 && field[keep - 1]->guess_ns > TOO_SLOW * best)
            keep--;
        for (size_t i = keep; i < n; i++)
            if (field[i]->variant != &rfi_baseline) /* by how much it loses is worth knowing */
                rfi_sweep_settle(r->w, field[i], RFI_DROPPED);
    }
}

/* Samples that all rounds will take. */
static double samples_planned(size_t n, uint32_t rounds)
{
    double sum = 0;
    for (uint32_t r = 1; r <= rounds; r++) {
        sum += (double)n;
        n = r % 2 == 0 ? half(n) : n;
    }
    return sum;
}

/* The same for all that are in this state. */
static double samples_of(const run *r, rfi_trial_state state, rfi_tune_trial **field)
{
    double sum = 0;
    for (unsigned flags = 0; flags <= RFI_OPT_INS; flags++)
        sum +=
            samples_planned(collect_flagged(r, state, flags, field), r->w->session->options.rounds);
    return sum;
}

static double sample_ns(const run *r, double samples)
{
    double left = (r->until - rfi_seconds()) * 1e9;
    double each = samples > 0 ? left / samples : 0;
    return each < SAMPLE_NS_MIN ? SAMPLE_NS_MIN : each > SAMPLE_NS_MAX ? SAMPLE_NS_MAX : each;
}

/* The first round admits as many as will get enough samples: each needs about what it takes here in
 * every round, so this one has a part of the time only. Who does not get its turn waits. */
static rf_result admit(run *r, rfi_tune_trial **field, double *scratch, rf_error *err)
{
    double now = rfi_seconds();
    r->until = now + (r->rounds_until - now) / rfi_sweep_enough(r->w);
    size_t n = collect_by_promise(r, RFI_CHECKED, field);
    rf_result rc = round_of(r, field, n, PILOT_NS, scratch, err);
    r->until = r->rounds_until;
    return rc;
}

/* However short the time is, something comes of it, or sessions that go on with this one would
 * begin with the same for ever: where no trial was settled the first gets what it needs. */
static rf_result finish_one(run *r, rfi_tune_trial **field, double *scratch, rf_error *err)
{
    size_t missing = 0, n;
    for (size_t i = 0; i < r->w->n; i++)
        missing += r->w->trials[i].state < RFI_SETTLED;
    if (missing < r->w->missing || !(n = collect_by_promise(r, RFI_RUNNING, field)))
        return RF_OK;
    rfi_tune_trial *t = field[0];
    for (size_t i = 1; i < n; i++)
        t = field[i]->n > t->n ? field[i] : t;
    rf_result rc = RF_OK;
    while (rc == RF_OK && t->state == RFI_RUNNING && t->n < rfi_sweep_enough(r->w))
        rc = round_of(r, &t, 1, PILOT_NS, scratch, err);
    return rc;
}

/* What was measured to the end, and what has too few samples and is left to the next session. */
static void settle_all(run *r, rfi_tune_trial **field)
{
    size_t n = collect(r, RFI_RUNNING, field);
    for (size_t i = 0; i < n; i++) {
        if (field[i]->n >= rfi_sweep_enough(r->w))
            rfi_sweep_settle(r->w, field[i], RFI_OK);
        else
            field[i]->state = RFI_MISSING;
    }
}

/* All rounds of those that the first one admits; where the store is lost, only those that this
 * comm's own plan needs. */
static rf_result batch(run *r, rfi_tune_trial **field, double *scratch, rf_error *err)
{
    rf_result rc = admit(r, field, scratch, err);
    rf_result db = RF_OK;
    double samples = samples_of(r, RFI_RUNNING, field);
    uint32_t n_rounds = r->w->session->options.rounds;
    for (uint32_t k = 1; rc == RF_OK; k++) {
        if (k == 1 || !out_of_time(r))
            cull(r, field, k);
        if (db == RF_OK)
            db = rfi_sweep_record(r->w, err);
        if (db != RF_OK)
            n_rounds = rfi_sweep_enough(r->w);
        if (k >= n_rounds || out_of_time(r))
            break;
        size_t running = collect_shuffled(r, RFI_RUNNING, field);
        rc = round_of(r, field, running, sample_ns(r, samples), scratch, err);
    }
    if (rc == RF_OK)
        rc = finish_one(r, field, scratch, err);
    settle_all(r, field);
    return rc != RF_OK ? rc : db;
}

/* As many at a time as the time suffices for. */
static rf_result batches(run *r, rfi_tune_trial **field, double *scratch, rf_error *err)
{
    rf_result rc = RF_OK;
    do
        rc = batch(r, field, scratch, err);
    while (rc == RF_OK && !out_of_time(r) && collect(r, RFI_CHECKED, field));
    return rc;
}

static rf_result check_all(run *r, rfi_tune_trial **field, rf_error *err)
{
    rfi_answer a;
    rfi_order o = {.kind = RFI_ORDER_SHAPE};
    rf_result rc = give(r, &o, NULL, &a, err);
    if (rc == RF_OK)
        rc = check(r, field, err);
    if (rc != RF_OK)
        return rc;
    o = (rfi_order){.kind = RFI_ORDER_SETTLE, .seed = draw(r)};
    return give(r, &o, NULL, &a, err);
}

static void count(rfi_sweep *w, const rfi_tune_trial *t)
{
    rf_tune_summary *sum = &w->session->summary;
    switch (t->result.outcome) {
    case RFI_OK:
    case RFI_DROPPED:
        sum->measured++;
        break;
    case RFI_WRONG:
        sum->wrong++;
        break;
    case RFI_TIMEOUT:
        sum->timeout++;
        break;
    case RFI_LAUNCH:
    case RFI_INFEASIBLE:
        sum->infeasible++;
        break;
    }
}

/* Checks may take half of the shape's part of the budget: there is something to decide by, and no
 * shape eats the others' part. */
static run plan_run(rfi_sweep *w, double until, double done, double share)
{
    const rfi_session *s = w->session;
    double now = rfi_seconds();
    return (run){.w = w,
                 .until = now + (until - now) / 2,
                 .rounds_until = until,
                 .done = done,
                 .share = share,
                 .random = (s->options.seed ^ (w->shape + 1)) | 1};
}

rf_result rfi_sweep_run(rfi_sweep *w, double until, double done, double share, rf_error *err)
{
    const rfi_session *s = w->session;
    run r = plan_run(w, until, done, share);
    rfi_tune_trial **field = calloc(w->n + 1, sizeof *field);
    double *scratch = calloc(s->options.rounds, sizeof *scratch);
    rf_result rc = RF_OK;
    if (!field || !scratch)
        rc = rfi_fail(err, RF_E_MEMORY, 0, "tune", "no memory for %zu candidates", w->n);
    if (rc == RF_OK)
        w->planned = (double)w->missing + samples_of(&r, RFI_MISSING, field);
    if (rc == RF_OK && w->missing)
        rc = check_all(&r, field, err);
    if (rc == RF_OK && w->missing)
        rc = rfi_sweep_record(w, err);
    if (rc == RF_OK && w->missing)
        rc = batches(&r, field, scratch, err);
    if (rc == RF_OK)
        rc = rfi_sweep_finish(w, err);
    for (size_t i = 0; i < w->n; i++)
        if (!w->trials[i].known && w->trials[i].state >= RFI_SETTLED)
            count(w, &w->trials[i]);
    free(field);
    free(scratch);
    return rc;
}
