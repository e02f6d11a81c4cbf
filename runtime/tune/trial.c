/* The plans as they stand, checked and timed: what a program gets. */
#include "tune/worker.h"

/* What a trial is asked for besides its shape. */
typedef struct demand {
    const char *step;
    uint64_t seed, calls, samples;
    int has_room; /* for the samples */
} demand;

static rf_result check(const rf_comm *comm, int channel, const rf_shape *shape,
                       const demand *wanted, rf_plan_info *plan, rf_error *err)
{
    int rank = rf_comm_rank(comm);
    if (!wanted->has_room)
        return rfi_fail(err, RF_E_ARG, rank, wanted->step, "us is NULL");
    if (!shape || !rf_supports(comm, shape))
        return rfi_fail(err, RF_E_ARG, rank, wanted->step, "the shape cannot be all-reduced here");
    rf_result rc =
        rf_plan_query(comm, channel, shape->rows * shape->hidden, shape->dtype, shape->mode, plan);
    return rc == RF_OK
               ? rc
               : rfi_fail(err, rc, rank, wanted->step, "channel %d: %s", channel, rf_strerror(rc));
}

static rf_result compare(rf_comm *comm, int channel, const rf_shape *shape, const demand *wanted,
                         rf_error *err)
{
    const rfi_term terms[] = {
        {"channel", (uint64_t)channel},  {"shape.dtype", shape->dtype},
        {"shape.mode", shape->mode},     {"shape.rows", shape->rows},
        {"shape.hidden", shape->hidden}, {"seed", wanted->seed},
        {"calls", wanted->calls},        {"n", wanted->samples},
    };
    return rfi_same(comm, wanted->step, terms, sizeof terms / sizeof *terms, err);
}

/* The worker with its buffers, on all ranks or an error on all; w->comm says whether to close it.
 */
static rf_result open_worker(rf_comm *comm, int channel, const rf_shape *shape,
                             const demand *wanted, rfi_worker *w, rf_plan_info *plan, rf_error *err)
{
    const char *step = wanted->step;
    *w = (rfi_worker){.comm = NULL};
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, step, "comm is NULL");
    rf_error why = {0};
    rf_result rc = check(comm, channel, shape, wanted, plan, &why);
    rc = rfi_agree(comm, step, rc, &why, rfi_timeout_ms(comm), err);
    if (rc == RF_OK)
        rc = compare(comm, channel, shape, wanted, err);
    if (rc != RF_OK)
        return rc;
    if (plan->fallback && !rfi_has_baseline(comm)) /* alike on all ranks */
        return RF_FALLBACK;
    *w = rfi_worker_of(comm, channel);
    rc = rfi_worker_shape(w, shape, &why);
    return rfi_agree(comm, step, rc, &why, rfi_timeout_ms(comm), err);
}

rf_result rf_verify(rf_comm *comm, int channel, const rf_shape *shape, uint64_t seed, rf_error *err)
{
    rfi_worker w;
    rf_plan_info plan = {.fallback = 0};
    rf_error why = {0};
    double ns;
    int wrong = 0;
    demand wanted = {.step = "verify", .seed = seed, .has_room = 1};
    rf_result rc = open_worker(comm, channel, shape, &wanted, &w, &plan, err);
    if (rc == RF_OK) {
        const rf_variant *variant =
            plan.fallback ? &rfi_baseline : rfi_variant_by_name(comm, plan.variant);
        rc = rfi_worker_check(&w, variant, plan.grid, seed, &ns, &wrong, &why);
        if (rc == RF_OK && wrong)
            rc = rfi_fail(&why, RF_E_WRONG, rf_comm_rank(comm), "verify",
                          "the sum differs from the oracle's");
        rc = rfi_agree(comm, "verify", rc, &why, rfi_timeout_ms(comm), err);
    }
    if (w.comm)
        rfi_worker_close(&w);
    return rc;
}

typedef struct sample {
    rf_result code;
    double ns;
} sample;

/* The slowest rank's time; the exchange also brings the ranks together for the next sample. */
static rf_result take(rfi_worker *w, const rf_variant *variant, uint32_t calls, double *us,
                      rf_error *err)
{
    rf_error why = {0};
    sample mine = {.code = RF_OK}, all[RF_MAX_WORLD];
    mine.code = rfi_worker_measure(w, variant, 0, calls, &mine.ns, &why);
    rf_result rc =
        rfi_allgather(w->comm, "time", &mine, all, sizeof mine, rfi_timeout_ms(w->comm), err);
    double slowest = 0;
    for (int r = 0; r < rf_comm_world(w->comm) && rc == RF_OK; r++) {
        slowest = all[r].ns > slowest ? all[r].ns : slowest;
        if (all[r].code != RF_OK)
            rc = rfi_fail(err, all[r].code, r, "time", "rank %d: %s", r,
                          mine.code == all[r].code ? why.text : rf_strerror(all[r].code));
    }
    if (rc == RF_OK)
        *us = slowest / 1000;
    return rc;
}

rf_result rf_time(rf_comm *comm, int channel, const rf_shape *shape, uint32_t calls, double *us,
                  size_t n, rf_error *err)
{
    rfi_worker w;
    rf_plan_info plan = {.fallback = 0};
    demand wanted = {.step = "time", .calls = calls, .samples = n, .has_room = us || !n};
    rf_result rc = open_worker(comm, channel, shape, &wanted, &w, &plan, err);
    if (rc == RF_OK)
        rc = rfi_worker_settle(&w, 1, err);
    for (size_t i = 0; i < n && rc == RF_OK; i++)
        rc = take(&w, plan.fallback ? &rfi_baseline : NULL, calls ? calls : 1, &us[i], err);
    if (w.comm)
        rfi_worker_close(&w);
    return rc;
}
