/* The plans as they stand, checked and timed: what a program gets. */
#include "tune/worker.h"

/* The worker with its buffers, on all ranks or an error on all; w->comm says whether to close it.
 */
static rf_result open_worker(rf_comm *comm, int channel, const rf_shape *shape, const char *step,
                             rfi_worker *w, rf_plan_info *plan, rf_error *err)
{
    *w = (rfi_worker){.comm = NULL};
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, step, "comm is NULL");
    rf_error why = {0};
    int rank = rf_comm_rank(comm);
    rf_result rc = RF_E_ARG;
    if (!shape || !rf_supports(comm, shape))
        rfi_fail(&why, rc, rank, step, "the shape cannot be all-reduced here");
    else if ((rc = rf_plan_query(comm, channel, shape->rows * shape->hidden, shape->dtype,
                                 shape->mode, plan)) != RF_OK)
        rfi_fail(&why, rc, rank, step, "channel %d: %s", channel, rf_strerror(rc));
    int missing = rc == RF_OK && plan->fallback && !rfi_has_baseline(comm); /* alike on all ranks */
    if (rc == RF_OK && !missing) {
        *w = rfi_worker_of(comm, channel);
        rc = rfi_worker_shape(w, shape, &why);
    }
    rc = rfi_agree(comm, step, rc, &why, rfi_timeout_ms(comm), err);
    return rc == RF_OK && missing ? RF_FALLBACK : rc;
}

rf_result rf_verify(rf_comm *comm, int channel, const rf_shape *shape, uint64_t seed, rf_error *err)
{
    rfi_worker w;
    rf_plan_info plan = {.fallback = 0};
    rf_error why = {0};
    double ns;
    int wrong = 0;
    rf_result rc = open_worker(comm, channel, shape, "verify", &w, &plan, err);
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
    rf_result rc = open_worker(comm, channel, shape, "time", &w, &plan, err);
    if (rc == RF_OK)
        rc = rfi_worker_settle(&w, 1, err);
    for (size_t i = 0; i < n && rc == RF_OK; i++)
        rc = take(&w, plan.fallback ? &rfi_baseline : NULL, calls ? calls : 1, &us[i], err);
    if (w.comm)
        rfi_worker_close(&w);
    return rc;
}
