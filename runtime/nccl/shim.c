/* NCCL's functions, as programs call them. Every one does what NCCL's does; beside it,
 * communicators get a comm of ours where all ranks can, and sums go there where that was measured
 * to be faster. A decision depends on what all ranks share: the communicator, count, type,
 * operation, capture and being in a group; everything else goes to NCCL as it is. */
#include <string.h>

#include "core/group.h"
#include "nccl/shim.h"

#define EXPORT      __attribute__((visibility("default")))
#define PATIENCE_MS 3000u /* after a split, whose ranks cannot say before that they are here */

#define RF_X(name, parameters) EXPORT ncclResult_t name parameters;
RFI_NCCL_LIST(RF_X)
#undef RF_X
EXPORT const char *ncclGetErrorString(ncclResult_t result);
EXPORT const char *ncclGetLastError(ncclComm_t comm);

/* Inside NCCL: what it calls by its public names is its own business. */
static _Thread_local int inside;
/* Groups that this thread has open. */
static _Thread_local int groups;

#define REAL(call)                                                                                 \
    __extension__({                                                                                \
        const rfi_nccl *real_nccl = rfi_nccl_real();                                               \
        inside++;                                                                                  \
        ncclResult_t real_result = real_nccl->call;                                                \
        inside--;                                                                                  \
        real_result;                                                                               \
    })

/* ---- communicators ---- */

/* In a group NCCL makes it later, and may make several ranks of one thread at once. */
static int can_attend(void)
{
    if (!inside && groups)
        rfi_shim_say(1, "a communicator made in a group stays with NCCL");
    return !inside && !groups;
}

/* NCCL's side is ready. presence: opened before, or -1. */
static void complete(rfi_entry *e, int presence, uint32_t patience_ms)
{
    int nranks = 0, rank = 0, mine = -1;
    if (REAL(ncclCommCount(e->key, &nranks)) || REAL(ncclCommUserRank(e->key, &rank)) || nranks < 2)
        return;
    if (presence < 0)
        mine = presence = rfi_presence_open(e->name, rank);
    inside++; /* tuning calls NCCL */
    if (presence >= 0)
        rfi_entry_set_up(e, nranks, rank, patience_ms);
    else
        rfi_shim_say(1, "rank %d cannot listen for the others", rank);
    inside--;
    rfi_presence_close(mine);
}

/* `made`: what NCCL said. A communicator that does not block is completed when it says that it is
 * ready, which its caller has to ask before the first use. */
static void attend(ncclResult_t made, ncclComm_t comm, uint64_t name, int presence,
                   uint32_t patience_ms)
{
    int later = made == ncclInProgress;
    rfi_entry *e = comm && (made == ncclSuccess || later) ? rfi_entry_add(comm, name) : NULL;
    if (e && later)
        __atomic_store_n(&e->pending, 1, __ATOMIC_RELEASE);
    else if (e)
        complete(e, presence, patience_ms);
}

/* INIT(real call): the same for every way that takes identifiers. */
#define INIT(call, ids, n_ids)                                                                     \
    do {                                                                                           \
        uint64_t name = rfi_shim_hash(RFI_SHIM_FNV, ids, (n_ids) * sizeof(ncclUniqueId));          \
        int here = comm && can_attend() && nranks > 1;                                             \
        int presence = here ? rfi_presence_open(name, rank) : -1;                                  \
        ncclResult_t made = REAL(call);                                                            \
        if (here)                                                                                  \
            attend(made, *comm, name, presence, 0);                                                \
        rfi_presence_close(presence);                                                              \
        return made;                                                                               \
    } while (0)

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    INIT(ncclCommInitRank(comm, nranks, id, rank), &id, 1);
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                           void *config)
{
    INIT(ncclCommInitRankConfig(comm, nranks, id, rank, config), &id, 1);
}

EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int n_ids,
                                             ncclUniqueId *ids, void *config)
{
    INIT(ncclCommInitRankScalable(comm, nranks, rank, n_ids, ids, config), ids,
         ids && n_ids > 0 ? (size_t)n_ids : 0);
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    if (!inside && n > 1)
        rfi_shim_say(1, "communicators of one thread (ncclCommInitAll) stay with NCCL");
    return REAL(ncclCommInitAll(comms, n, devices));
}

/* Children of a communicator that is known; their name follows from its name. */
static void attend_child(ncclResult_t made, rfi_entry *parent, int color, const ncclComm_t *child)
{
    if (!parent)
        return;
    uint64_t name = rfi_shim_hash(parent->name, &parent->children, sizeof parent->children);
    name = rfi_shim_hash(name, &color, sizeof color);
    parent->children++; /* on every rank of the parent, with a child or without */
    attend(made, *child, name, -1, PATIENCE_MS);
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                                  void *config)
{
    rfi_entry *parent = !out || !can_attend() ? NULL : rfi_entry_find(comm);
    if (out)
        *out = NULL;
    ncclResult_t made = REAL(ncclCommSplit(comm, color, key, out, config));
    attend_child(made, parent, color, out);
    return made;
}

EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *exclude, int n, ncclComm_t *out,
                                   void *config, int flags)
{
    rfi_entry *parent = !out || !can_attend() ? NULL : rfi_entry_find(comm);
    if (out)
        *out = NULL;
    ncclResult_t made = REAL(ncclCommShrink(comm, exclude, n, out, config, flags));
    attend_child(made, parent, -1, out);
    return made;
}

/* ---- ends ---- */

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    rfi_entry *e = inside ? NULL : rfi_entry_find(comm);
    if (e)
        rfi_entry_finish(e);
    return REAL(ncclCommFinalize(comm));
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    rfi_entry *e = inside ? NULL : rfi_entry_find(comm);
    if (e) {
        rfi_entry_finish(e);
        rfi_entry_drop(e);
    }
    return REAL(ncclCommDestroy(comm));
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    rfi_entry *e = inside ? NULL : rfi_entry_find(comm);
    if (e) {
        rfi_entry_abort(e);
        rfi_entry_drop(e);
    }
    return REAL(ncclCommAbort(comm));
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    rfi_entry *e = inside ? NULL : rfi_entry_find(comm);
    if (e)
        rfi_entry_abort(e);
    return REAL(ncclCommRevoke(comm, flags));
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    rf_health health = {.code = RF_OK};
    ncclResult_t r = REAL(ncclCommGetAsyncError(comm, error));
    rfi_entry *e = inside ? NULL : rfi_entry_find(comm);
    if (!e || r || !error || *error)
        return r;
    if (__atomic_exchange_n(&e->pending, 0, __ATOMIC_ACQ_REL))
        complete(e, -1, PATIENCE_MS);
    pthread_mutex_lock(&e->lock);
    if (e->comm)
        rf_comm_check(e->comm, &health);
    pthread_mutex_unlock(&e->lock);
    if (health.code)
        *error = ncclRemoteError;
    return r;
}

/* ---- texts: those of a library that is not there, too ---- */

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    return rfi_nccl_real()->ncclGetErrorString(result);
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    return rfi_nccl_real()->ncclGetLastError(comm);
}

/* ---- groups: NCCL's, whole. Its calls take effect together at the end, ours would at once, and
 * among several communicators of one thread that is another order than NCCL's. ---- */

EXPORT ncclResult_t ncclGroupStart(void)
{
    ncclResult_t r = REAL(ncclGroupStart());
    groups += !inside && r == ncclSuccess;
    return r;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    groups -= !inside && groups > 0;
    return REAL(ncclGroupEnd());
}

EXPORT ncclResult_t ncclGroupSimulateEnd(void *info)
{
    groups -= !inside && groups > 0;
    return REAL(ncclGroupSimulateEnd(info));
}

/* ---- sums ---- */

static int dtype_of(int type)
{
    return type == ncclFloat32    ? (int)RF_F32
           : type == ncclBfloat16 ? (int)RF_BF16
           : type == ncclFloat16  ? (int)RF_F16
                                  : -1;
}

static ncclResult_t result_of(rf_result result)
{
    switch (result) {
    case RF_OK:
        return ncclSuccess;
    case RF_E_ARG:
    case RF_E_ALIGN:
    case RF_E_OVERLAP:
        return ncclInvalidArgument;
    case RF_E_TIMEOUT:
    case RF_E_PEER:
    case RF_E_ABORTED:
    case RF_E_POISONED:
        return ncclRemoteError;
    default:
        return ncclSystemError;
    }
}

/* FALLBACK: not ours, nothing was done. The lock is held. */
static rf_result reduce(rfi_entry *e, const void *in, void *out, size_t count, int dtype,
                        void *stream)
{
    uint64_t capture, bytes = count * rf_dtype_size((rf_dtype)dtype);
    if (!e->comm || bytes > e->capacity)
        return RF_FALLBACK;
    rf_mode mode = rfi_order_mode(&e->order, stream, &capture);
    if (!e->ours[mode][dtype][rfi_shim_size(bytes)])
        return RF_FALLBACK;
    if (rfi_order_before(&e->order, mode, stream, capture))
        return RF_E_BACKEND;
    rf_channel_rebind(e->comm, (int)mode);
    rf_result result = rf_all_reduce(e->comm, (int)mode, in, out, count, (rf_dtype)dtype,
                                     e->order.driver ? stream : NULL);
    if (result == RF_OK && rfi_order_after(&e->order, mode, stream))
        result = RF_E_BACKEND;
    if (result >= RF_E_ARG)
        rfi_shim_say(1, "all-reduce of %zu: %s", count, rf_comm_error(e->comm)->text);
    return result;
}

EXPORT ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                                  ncclComm_t comm, cudaStream_t stream)
{
    rfi_entry *e = inside ? NULL : rfi_entry_find(comm);
    int dtype = dtype_of(type);
    if (e) {
        rf_result result = RF_FALLBACK;
        pthread_mutex_lock(&e->lock);
        if (!groups && op == ncclSum && dtype >= 0 && count && count < UINT64_MAX / 8)
            result = reduce(e, in, out, count, dtype, stream);
        e->n_ours += result == RF_OK;
        e->n_theirs += result == RF_FALLBACK && !groups;
        e->n_grouped += groups > 0;
        pthread_mutex_unlock(&e->lock);
        if (result != RF_FALLBACK)
            return result_of(result);
    }
    return REAL(ncclAllReduce(in, out, count, type, op, comm, stream));
}
