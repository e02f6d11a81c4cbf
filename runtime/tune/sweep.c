#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune/candidates.h"
#include "tune/stats.h"
#include "tune/sweep.h"

/* As the store names it. */
static const rf_variant *recorded(const rf_variant *variant)
{
    return variant == &rfi_baseline ? NULL : variant;
}

#define ENOUGH 3u

uint32_t rfi_sweep_enough(const rfi_sweep *w)
{
    uint32_t rounds = w->session->options.rounds;
    return rounds < ENOUGH ? rounds : ENOUGH;
}

int rfi_sweep_is_unfinished(const rfi_sweep *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->trials[i].state < RFI_SETTLED)
            return 1;
    return 0;
}

void rfi_sweep_settle(const rfi_sweep *w, rfi_tune_trial *t, rfi_outcome outcome)
{
    rfi_stats st = rfi_stats_of(t->samples, t->n);
    t->state = RFI_SETTLED;
    t->result = (rfi_measurement){
        .key = w->key,
        .variant = recorded(t->variant),
        .grid = t->grid,
        .outcome = outcome,
        .n = t->n,
        .order_index = t->order_index,
        .min_ns = st.min,
        .p10_ns = st.p10,
        .median_ns = st.median,
        .p90_ns = st.p90,
        .max_ns = st.max,
        .noise_ns = st.mad,
    };
}

/* Does the store know what comes of this candidate? */
static int is_known(const rfi_sweep *w, rfi_tune_trial *t)
{
    rf_store *store = rfi_store(w->session->comm);
    return store && !(w->session->options.flags & RF_TUNE_FORCE) &&
           store->v->measured(store, &w->key, recorded(t->variant), t->grid, &t->result) &&
           (t->result.outcome != RFI_OK || t->result.n >= rfi_sweep_enough(w));
}

/* Known already, refused here, or to be run. */
static void place(rfi_sweep *w, rfi_tune_trial *t, const char *refusal)
{
    if (is_known(w, t))
        t->state = RFI_RECORDED, t->known = 1;
    else if (refusal)
        rfi_sweep_settle(w, t, RFI_INFEASIBLE);
    else
        w->missing++;
}

typedef struct asking {
    const rf_comm *comm;
    const rf_shape *shape;
} asking;

/* Only this very variant counts: an earlier build of it is measured anew. */
static int have(void *ctx, const unsigned char hash[16], const char *name)
{
    const asking *a = ctx;
    const rf_variant *v = rfi_variant_by_hash(a->comm, hash);
    (void)name;
    return v && !rfi_refusal(a->comm, v, a->shape) ? 2 : 0;
}

/* Swept, the baseline too if there is one, and the winner is still in the packs as it was. */
static int is_warm(const rfi_session *s, const rf_shape *shape, const rfi_key *key)
{
    rf_store *store = rfi_store(s->comm);
    asking ask = {s->comm, shape};
    rfi_decision d;
    return store && !(s->options.flags & RF_TUNE_FORCE) && store->v->swept(store, key) &&
           store->v->lookup(store, key, have, &ask, &d) && d.rung == RF_RUNG_EXACT &&
           (d.baseline_ns > 0 || !rfi_has_baseline(s->comm));
}

/* Of what passed the filter: may any run? Else it is said, alike for shapes that differ in rows. */
static int is_matched(const rfi_session *s, const rf_shape *shape, const rfi_tune_candidate *list,
                      size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!list[i].refusal)
            return 1;
    rfi_log(s->comm, 1, "tune: %s for %s, hidden %llu, matches '%.60s'%s%s",
            n ? "nothing that runs" : "no variant", rf_dtype_name(shape->dtype),
            (unsigned long long)shape->hidden, s->options.variant_filter, n ? ": " : "",
            n ? list[0].refusal : "");
    return 0;
}

rf_result rfi_sweep_open(rfi_session *s, uint32_t shape, rfi_sweep *out, rf_error *err)
{
    rfi_sweep w = {.session = s, .shape = shape, .key = rfi_key_of(s->comm, &s->shapes[shape])};
    rfi_tune_candidate *list = NULL;
    *out = w;
    if (is_warm(s, &s->shapes[shape], &w.key)) {
        out->warm = 1;
        return RF_OK;
    }
    rf_result rc =
        rfi_candidates(s->comm, &s->shapes[shape], s->options.variant_filter, &list, &w.n, err);
    if (rc != RF_OK)
        return rc;
    w.unmatched = s->options.variant_filter && !is_matched(s, &s->shapes[shape], list, w.n);
    w.trials = calloc(w.n + 1, sizeof *w.trials);
    w.samples = calloc(w.n * s->options.rounds + 1, sizeof *w.samples);
    if (!w.trials || !w.samples) {
        free(list);
        rfi_sweep_close(&w);
        return rfi_fail(err, RF_E_MEMORY, 0, "tune", "no memory for %zu candidates", w.n);
    }
    for (size_t i = 0; i < w.n; i++) {
        double *samples = w.samples + i * s->options.rounds;
        w.trials[i] = (rfi_tune_trial){
            .variant = list[i].variant,
            .grid = list[i].grid,
            .promise = rfi_promise(s->comm, list[i].variant, list[i].grid, w.key.bytes),
            .samples = samples,
        };
        place(&w, &w.trials[i], list[i].refusal);
    }
    free(list);
    *out = w;
    return RF_OK;
}

void rfi_sweep_close(rfi_sweep *w)
{
    free(w->trials);
    free(w->samples);
    w->trials = NULL, w->samples = NULL, w->n = 0;
}

static int is_ok(const rfi_tune_trial *t)
{
    return t->state >= RFI_SETTLED && t->result.outcome == RFI_OK;
}

double rfi_sweep_baseline_ns(const rfi_sweep *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->trials[i].variant == &rfi_baseline && w->trials[i].state >= RFI_SETTLED)
            return is_ok(&w->trials[i]) ? w->trials[i].result.median_ns : INFINITY;
    return 0;
}

const rfi_tune_trial *rfi_sweep_best(const rfi_sweep *w)
{
    const rfi_tune_trial *best = NULL;
    for (size_t i = 0; i < w->n; i++)
        if (is_ok(&w->trials[i]) &&
            (!best || w->trials[i].result.median_ns < best->result.median_ns))
            best = &w->trials[i];
    return best;
}

int rfi_sweep_has_ours(const rfi_sweep *w)
{
    for (size_t i = 0; i < w->n; i++) {
        const rfi_tune_trial *t = &w->trials[i];
        if (t->variant != &rfi_baseline && t->state >= RFI_SETTLED &&
            (t->result.outcome == RFI_OK || t->result.outcome == RFI_DROPPED))
            return 1;
    }
    return 0;
}

rf_result rfi_sweep_record(rfi_sweep *w, rf_error *err)
{
    rf_store *store = rfi_store(w->session->comm);
    rfi_measurement *facts = malloc((w->n + 1) * sizeof *facts);
    if (!facts)
        return rfi_fail(err, RF_E_MEMORY, 0, "tune", "no memory for %zu facts", w->n);
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++)
        if (w->trials[i].state == RFI_SETTLED)
            facts[n++] = w->trials[i].result;
    rf_result rc = store && n ? store->v->record(store, facts, n, err) : RF_OK;
    for (size_t i = 0; i < w->n && rc == RF_OK; i++)
        if (w->trials[i].state == RFI_SETTLED)
            w->trials[i].state = RFI_RECORDED;
    free(facts);
    return rc;
}

/* Is the field complete, so that a decision for everybody may follow from it? */
static int complete(const rfi_sweep *w)
{
    return !rfi_sweep_is_unfinished(w) && !w->session->options.variant_filter && rfi_sweep_best(w);
}

rf_result rfi_sweep_finish(rfi_sweep *w, rf_error *err)
{
    rf_store *store = rfi_store(w->session->comm);
    rf_result rc = rfi_sweep_record(w, err);
    if (rc == RF_OK && store && complete(w)) {
        rc = store->v->finish_shape(store, &w->key, err);
        w->finished = rc == RF_OK;
    }
    return rc;
}
