#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune/sweep.h"

static void close_all(rfi_sweep *sweeps, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rfi_sweep_close(&sweeps[i]);
    free(sweeps);
}

static rf_result open_all(rfi_session *s, rfi_sweep **out, rf_error *err)
{
    rfi_sweep *sweeps = calloc(s->n + 1, sizeof *sweeps);
    if (!sweeps)
        return rfi_fail(err, RF_E_MEMORY, 0, "tune", "no memory for %zu shapes", s->n);
    for (size_t i = 0; i < s->n; i++) {
        rf_result rc = rfi_sweep_open(s, (uint32_t)i, &sweeps[i], err);
        if (rc != RF_OK) {
            close_all(sweeps, i);
            return rc;
        }
    }
    *out = sweeps;
    return RF_OK;
}

/* What callers hand in, as part of one line: databases refuse control characters in a text. */
static void put_line(const char *text, char *out, size_t size)
{
    snprintf(out, size, "%s", text);
    for (; *out; out++)
        if (*out < ' ' || *out > '~')
            *out = '?';
}

static rf_result begin_campaign(const rfi_session *s, rf_error *err)
{
    char policy[256], name[33], filter[65];
    rf_store *store = rfi_store(s->comm);
    const rf_tune_options *o = &s->options;
    put_line(rfi_has_baseline(s->comm) ? rfi_baseline_name(s->comm) : "", name, sizeof name);
    put_line(o->variant_filter ? o->variant_filter : "*", filter, sizeof filter);
    snprintf(policy, sizeof policy,
             "baseline=%s\nbudget_ms=%u\nfilter=%s\nforce=%u\nrounds=%u\nseed=%llu\n"
             "statistic=median of rounds, max over ranks\n",
             name, o->budget_ms, filter, o->flags & RF_TUNE_FORCE, o->rounds,
             (unsigned long long)o->seed);
    char tool[64];
    snprintf(tool, sizeof tool, "rankfold %s", rf_version_string());
    rfi_campaign c = {
        .hw = rfi_hw(s->comm),
        .env = rfi_env(s->comm),
        .arch = rfi_arch(s->comm),
        .tool = tool,
        .toolchain = rfi_toolchain(s->comm),
        .policy = policy,
        .admits = rfi_admits(s->comm),
    };
    return store ? store->v->begin(store, &c, err) : RF_OK;
}

/* What a shape costs to measure, in no unit: for each candidate a constant part, and its bytes:
 * those of large ones are checked and moved often, but a part by the bytes alone would leave
 * nothing to the small ones, which are the ones that matter. */
static double weight(const rfi_session *s, const rfi_sweep *w)
{
    double bytes = (double)w->key.bytes * rf_comm_world(s->comm);
    return w->warm ? 0 : (double)(w->missing + 1) * (1 + bytes / (16 << 20));
}

/* Every cold shape gets its part of the time that is left; the first one is begun however little
 * that is, so that a session with cold shapes always gets on with one. */
static rf_result run_cold(rfi_session *s, rfi_sweep *sweeps, rf_error *err)
{
    double end = s->start + s->options.budget_ms * 1e-3, total = 0, before = 0;
    int begun = 0;
    for (size_t i = 0; i < s->n; i++)
        total += weight(s, &sweeps[i]);
    for (size_t i = 0; i < s->n && (!begun || rfi_seconds() < end); i++) {
        double now = rfi_seconds(), mine = weight(s, &sweeps[i]);
        if (sweeps[i].warm)
            continue;
        begun = 1;
        rf_result rc = rfi_sweep_run(&sweeps[i], now + (end - now) * mine / (total - before),
                                     before / total, mine / total, err);
        if (rc != RF_OK)
            return rc;
        before += mine;
    }
    return RF_OK;
}

static rf_result measure(rfi_session *s, rfi_sweep *sweeps, rf_error *err)
{
    rf_store *store = rfi_store(s->comm);
    rf_result rc = run_cold(s, sweeps, err);
    for (size_t i = 0; i < s->n; i++)
        s->summary.unfinished += (uint32_t)rfi_sweep_is_unfinished(&sweeps[i]);
    return rc == RF_OK && store ? store->v->end(store, err) : rc;
}

/* Has the store a decision for this shape, by another sweep, which was whole? */
static int is_decided(const rfi_session *s, size_t i)
{
    const rf_shape *shape = &s->shapes[i];
    rf_plan_info plan;
    return rf_plan_query(s->comm, s->channel, shape->rows * shape->hidden, shape->dtype,
                         shape->mode, &plan) == RF_OK &&
           plan.rung == RF_RUNG_EXACT;
}

/* Plans from the store; from what was just measured where the store cannot decide by it: there is
 * none, it was lost, the time was up, or a filter left a part of the field out. */
static rf_result decide(rfi_session *s, const rfi_sweep *sweeps, rf_error *err)
{
    rfi_answer a;
    rfi_order prepare = {.kind = RFI_ORDER_PREPARE, .done = 1};
    rf_result rc = rfi_session_order(s, &prepare, &a, err);
    for (size_t i = 0; i < s->n && rc == RF_OK; i++) {
        const rfi_tune_trial *best = rfi_sweep_best(&sweeps[i]);
        if (!best || sweeps[i].finished) /* none: it is warm, or nothing could be measured */
            continue;
        if (rfi_sweep_is_unfinished(&sweeps[i]) &&
            (is_decided(s, i) || !rfi_sweep_has_ours(&sweeps[i])))
            continue; /* a baseline alone is faster than nothing */
        rfi_order set = {.kind = RFI_ORDER_SET, .done = 1};
        set.shape = (uint32_t)i;
        set.grid = best->grid;
        set.median_ns = best->result.median_ns;
        set.baseline_ns = rfi_sweep_baseline_ns(&sweeps[i]);
        memcpy(set.hash, best->variant->hash, sizeof set.hash);
        rc = rfi_session_order(s, &set, &a, err);
    }
    return rc;
}

static int is_db(rf_result code)
{
    return code >= RF_E_DB && code <= RF_E_DB_ABSENT;
}

/* Measures what is cold, and decides. A store that is lost on the way ends only the measuring; one
 * that cannot be written from the start leaves all as it was. */
static rf_result run(rfi_session *s, rfi_sweep *sweeps, rf_error *err)
{
    rf_error late = {0};
    rf_result verdict = RF_OK;
    s->summary.shapes = (uint32_t)s->n;
    for (size_t i = 0; i < s->n; i++) {
        s->summary.warm += (uint32_t)sweeps[i].warm;
        s->summary.unmatched += (uint32_t)sweeps[i].unmatched;
    }
    if (s->summary.warm < s->n) {
        if ((verdict = begin_campaign(s, err)) != RF_OK)
            return verdict;
        verdict = measure(s, sweeps, err);
    }
    if (verdict != RF_OK && !is_db(verdict))
        return verdict;
    rf_result rc = decide(s, sweeps, &late);
    if (rc != RF_OK)
        verdict = rc, *err = late;
    return verdict;
}

rf_result rfi_session_lead(rfi_session *s, rf_error *err)
{
    rfi_sweep *sweeps = NULL;
    rf_error why = {0};
    rf_result verdict = open_all(s, &sweeps, &why);
    if (sweeps)
        verdict = run(s, sweeps, &why);
    close_all(sweeps, sweeps ? s->n : 0);
    s->summary.seconds = rfi_seconds() - s->start;
    if (!s->over) {
        rfi_order end = {.kind = RFI_ORDER_END, .verdict = verdict, .summary = s->summary};
        memcpy(end.text, why.text, sizeof end.text);
        rf_result rc = rfi_broadcast(s->comm, "tune", &end, sizeof end, rfi_timeout_ms(s->comm),
                                     verdict == RF_OK ? &why : NULL);
        if (verdict == RF_OK)
            verdict = rc;
    }
    if (verdict != RF_OK && err)
        *err = why;
    return verdict;
}
