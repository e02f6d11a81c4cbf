/* The caller's own collective: given to the comm, and NCCL's, found at run time. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/comm.h"

#define STEP "baseline"

const rf_variant rfi_baseline = {.name = "baseline"};

int rfi_has_baseline(const rf_comm *comm)
{
    return comm->baseline.all_reduce != NULL;
}

const char *rfi_baseline_name(const rf_comm *comm)
{
    return comm->baseline.name;
}

/* ---- given to the comm ---- */

typedef struct offer {
    uint32_t here;
    char name[RF_BASELINE_NAME];
} offer;

rf_result rf_comm_baseline(rf_comm *comm, const rf_baseline *baseline, rf_error *err)
{
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "comm is NULL");
    rf_baseline b = {.name = "none was given"};
    if (baseline)
        b = *baseline;
    offer mine = {.here = b.all_reduce != NULL}, all[RF_MAX_WORLD];
    snprintf(mine.name, sizeof mine.name, "%.*s", RF_BASELINE_NAME - 1, b.name);
    rf_result bad =
        rfi_allgather(comm, STEP, &mine, all, sizeof mine, comm->config.create_timeout_ms, err);
    if (bad)
        return bad;
    for (int r = 0; r < comm->world && !bad; r++)
        if (!all[r].here) {
            all[r].name[RF_BASELINE_NAME - 1] = 0;
            bad =
                rfi_fail(err, RF_E_BACKEND, r, STEP, "rank %d has no baseline: %s", r, all[r].name);
            memset(&b, 0, sizeof b);
            snprintf(b.name, sizeof b.name, "rank %d: %.*s", r, RF_BASELINE_NAME - 24, all[r].name);
        }
    if (!bad)
        memcpy(b.name, all[0].name, sizeof b.name); /* what is recorded is rank 0's */
    b.name[sizeof b.name - 1] = 0;
    pthread_mutex_lock(&comm->lock);
    comm->baseline = b;
    pthread_mutex_unlock(&comm->lock);
    return bad;
}

/* ---- NCCL ---- */

/* What of it is used, by its own names: X(name, (parameters)). All return ncclResult_t, 0 = done.
 * Not the list of the shim (nccl/nccl.h), which has ten times as many, each with a stand-in where
 * the library is older: here both are needed, and the core knows nothing of the shim. */
#define NCCL_LIST(X)                                                                               \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclAllReduce,                                                                               \
      (const void *in, void *out, size_t count, int type, int op, void *comm, void *stream))

typedef struct nccl_table {
#define RF_X(name, parameters) int(*name) parameters;
    NCCL_LIST(RF_X)
#undef RF_X
} nccl_table;

static const struct entry {
    const char *name;
    size_t offset;
} entries[] = {
#define RF_X(name, parameters) {#name, offsetof(nccl_table, name)},
    NCCL_LIST(RF_X)
#undef RF_X
};

static nccl_table nccl;
static char nccl_text[RF_BASELINE_NAME]; /* its version, or why it cannot be used */
static int nccl_here;
static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;

static void open_nccl(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) {
        const char *why = dlerror();
        snprintf(nccl_text, sizeof nccl_text, "no NCCL: %.140s", why ? why : "unknown reason");
        return;
    }
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *at = dlsym(library, entries[i].name);
        if (!at) {
            snprintf(nccl_text, sizeof nccl_text, "libnccl.so.2 lacks %s", entries[i].name);
            return;
        }
        memcpy((char *)&nccl + entries[i].offset, &at, sizeof at);
    }
    int version = 0;
    if (nccl.ncclGetVersion(&version)) {
        snprintf(nccl_text, sizeof nccl_text, "libnccl.so.2 does not tell its version");
        return;
    }
    snprintf(nccl_text, sizeof nccl_text, "nccl %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    nccl_here = 1;
}

/* ncclDataType_t and ncclRedOp_t, as every NCCL 2 numbers them. */
static const int nccl_type[] = {[RF_F32] = 7, [RF_BF16] = 9, [RF_F16] = 6};
#define NCCL_SUM 0

static rf_result nccl_all_reduce(void *comm, const void *in, void *out, uint64_t count,
                                 rf_dtype dtype, void *stream)
{
    return nccl.ncclAllReduce(in, out, count, nccl_type[dtype], NCCL_SUM, comm, stream)
               ? RF_E_BACKEND
               : RF_OK;
}

rf_result rf_baseline_nccl(void *nccl_comm, rf_baseline *out, rf_error *err)
{
    if (!nccl_comm || !out)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "%s is NULL",
                        out ? "the NCCL communicator" : "out");
    pthread_once(&nccl_once, open_nccl);
    memset(out, 0, sizeof *out);
    memcpy(out->name, nccl_text, sizeof out->name);
    if (!nccl_here)
        return rfi_fail(err, RF_E_BACKEND, -1, STEP, "%s", nccl_text);
    out->all_reduce = nccl_all_reduce;
    out->ctx = nccl_comm;
    return RF_OK;
}
