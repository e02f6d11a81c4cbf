/* Finding the launcher's variables, and what is common to all bootstraps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "core/bootstrap.h"
#include "core/env.h"
#include "core/group.h"

#define JOB_PARTS 4

/* Launchers by the variables that they set; the first complete pair counts. `job` lists variables
 * that together are the same on all ranks of a job and differ between jobs; as many as are set
 * count. A launcher that sets none is told apart by its process, the parent of all ranks. */
static const struct launcher {
    const char *rank, *world, *job[JOB_PARTS];
    int by_parent;
} launchers[] = {
    {"RANK",
     "WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
     0},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE"}, 1},
    {"PMI_RANK", "PMI_SIZE", {"PMI_JOBID"}, 1},
};
#define N_LAUNCHERS (sizeof launchers / sizeof *launchers)

static const char *job_name(const struct launcher *launcher, char *buf, size_t size)
{
    const char *name = rfi_env_get(RFI_RANKFOLD_BOOTSTRAP);
    if (name)
        return name;
    size_t used = 0;
    for (int i = 0; i < JOB_PARTS && launcher->job[i] && used < size; i++) {
        const char *part = getenv(launcher->job[i]);
        if (part)
            used += (size_t)snprintf(buf + used, size - used, "%s|", part);
    }
    if (!used && launcher->by_parent)
        used = (size_t)snprintf(buf, size, "parent %ld", (long)getppid());
    return used ? buf : NULL;
}

rf_result rf_bootstrap_env(rf_bootstrap *out, rf_error *err)
{
    if (!out)
        return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "out is NULL");
    for (size_t i = 0; i < N_LAUNCHERS; i++) {
        const struct launcher *l = &launchers[i];
        const char *rank_text = getenv(l->rank), *world_text = getenv(l->world);
        uint32_t rank, world;
        if (!rank_text || !world_text)
            continue;
        if (!rfi_parse_u32(world_text, 1, RF_MAX_WORLD, &world))
            return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "%s=%.32s: expected 1 to %d", l->world,
                            world_text, RF_MAX_WORLD);
        if (!rfi_parse_u32(rank_text, 0, world - 1, &rank))
            return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "%s=%.32s: expected 0 to %u", l->rank,
                            rank_text, world - 1);
        char buf[512];
        const char *name = job_name(l, buf, sizeof buf);
        if (!name)
            return rfi_fail(err, RF_E_ARG, (int)rank, "bootstrap",
                            "%s is set, but nothing names the job: set RANKFOLD_BOOTSTRAP to a "
                            "text that is the same on all ranks",
                            l->rank);
        return rf_bootstrap_socket(name, (int)rank, (int)world, out, err);
    }
    return rfi_fail(err, RF_E_ARG, -1, "bootstrap",
                    "no launcher found: set RANK and WORLD_SIZE (torchrun, OpenMPI and PMI "
                    "variables are read too) and RANKFOLD_BOOTSTRAP");
}

const rfi_bootstrap_state *rfi_bootstrap_state_of(const rf_bootstrap *boot)
{
    if (boot->allgather != rfi_bootstrap_socket_allgather &&
        boot->allgather != rfi_bootstrap_threads_allgather)
        return NULL;
    return boot->ctx;
}

void rf_bootstrap_free(rf_bootstrap *boot)
{
    if (boot && boot->free_ctx)
        boot->free_ctx(boot->ctx);
    if (boot)
        memset(boot, 0, sizeof *boot);
}
