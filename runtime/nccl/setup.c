/* Making the comm behind an NCCL communicator, and its end. Every step is a collective with one
 * verdict, so that all ranks end with a comm of ours or none does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/group.h"
#include "core/socket.h"
#include "nccl/packs.h"
#include "nccl/shim.h"
#include "store/shipped.h"

#define CAPACITY    (8u << 20)
#define DEADLINE_MS 1800000u /* NCCL's callers are used to peers that take their time */
#define CLOSE_MS    10000u
#define CONNECT_MS  1000
#define SECONDS     60u

/* ---- presence ---- */

static void presence_name(uint64_t name, int rank, char out[RFI_SOCKET_NAME])
{
    snprintf(out, RFI_SOCKET_NAME, "rankfold-nccl-%s-%u-%016llx-%d", rf_version_string(),
             (unsigned)getuid(), (unsigned long long)name, rank);
}

int rfi_presence_open(uint64_t name, int rank)
{
    char text[RFI_SOCKET_NAME];
    presence_name(name, rank, text);
    int fd = rfi_socket_listen(text);
    return fd < 0 ? -1 : fd;
}

void rfi_presence_close(int presence)
{
    rfi_socket_close(&presence);
}

/* The first rank that is not here, -1 = all are. */
static int first_missing(uint64_t name, int world, int rank, uint32_t patience_ms)
{
    uint64_t until = rfi_deadline(patience_ms);
    for (int r = 0; r < world; r++) {
        char text[RFI_SOCKET_NAME];
        int fd = -1;
        presence_name(name, r, text);
        while (r != rank && (fd = rfi_socket_connect(text, rfi_deadline(CONNECT_MS))) < 0) {
            if (!rfi_left_ms(until))
                return r;
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        }
        rfi_socket_close(&fd);
    }
    return -1;
}

/* ---- what the environment asks for ---- */

static uint32_t number(rfi_shim_variable name, uint32_t otherwise)
{
    const char *text = rfi_shim_env(name);
    char *end = NULL;
    unsigned long long value = text ? strtoull(text, &end, 10) : otherwise;
    if (text && (*end || !value || value > UINT32_MAX)) {
        rfi_shim_say(1, "%s=%.32s is not a number that can be used; it is %u",
                     rfi_shim_env_text(name), text, otherwise);
        value = otherwise;
    }
    return (uint32_t)value;
}

/* Bit per dtype that is to be tuned; a list that is not wholly understood is none. */
static uint32_t dtypes_to_tune(void)
{
    const char *text = rfi_shim_env(RFI_SHIM_RANKFOLD_TUNE);
    uint32_t mask = 0;
    if (!text || !strcmp(text, "0"))
        return 0;
    if (!strcmp(text, "1"))
        return (1u << RFI_SHIM_DTYPES) - 1;
    for (const char *at = text; at;) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        int dtype = rf_dtype_parse(name);
        if (dtype < 0) {
            rfi_shim_say(1,
                         "not tuned: RANKFOLD_TUNE=%.60s: '%s' is no dtype; expected 1, or dtypes "
                         "as bf16,f32",
                         text, name);
            return 0;
        }
        mask |= 1u << dtype;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return mask;
}

static int on_cpu(void)
{
    const char *backend = rfi_shim_env(RFI_SHIM_RANKFOLD_BACKEND);
    return backend && !strcmp(backend, "cpu");
}

/* ---- the comm ---- */

static rf_result open_store(rf_store **out)
{
    static const char inside = 0;
    char path[PATH_MAX];
    Dl_info self;
    const char *shipped = dladdr(&inside, &self) ? rfi_shipped_beside(self.dli_fname, path) : NULL;
    return rf_store_open(NULL, shipped, 0, out, NULL);
}

static void log_line(void *ctx, int level, const char *line)
{
    (void)ctx, (void)level;
    rfi_shim_say(2, "%s", line);
}

static rf_result create(rfi_entry *e, int world, int rank, rf_error *err)
{
    char name[32];
    rf_bootstrap boot;
    const rf_backend_kind kind = on_cpu() ? RF_BACKEND_CPU : RF_BACKEND_CUDA;
    const rf_pack *packs[] = {rfi_shim_pack(kind)};
    rf_config config = RF_CONFIG_INIT;
    config.backend = kind;
    config.packs = packs;
    config.n_packs = packs[0] ? 1 : 0;
    config.capacity_bytes = e->capacity;
    config.channels = RFI_LANES;
    config.deadline_ms = DEADLINE_MS;
    config.log = log_line;
    rfi_nccl_real()->ncclCommCuDevice(e->key, &config.device);
    if (rank == 0)
        open_store(&e->store);
    config.store = e->store;
    snprintf(name, sizeof name, "nccl-%016llx", (unsigned long long)e->name);
    rf_result bad = rf_bootstrap_socket(name, rank, world, &boot, err);
    if (bad)
        return bad;
    bad = rf_comm_create(&config, &boot, &e->comm, err);
    rf_bootstrap_free(&boot);
    return bad;
}

static rf_result nccl_all_reduce(void *ctx, const void *in, void *out, uint64_t count,
                                 rf_dtype dtype, void *stream)
{
    static const int types[] = {
        [RF_F32] = ncclFloat32, [RF_BF16] = ncclBfloat16, [RF_F16] = ncclFloat16};
    const rfi_nccl *real = rfi_nccl_real();
    ncclResult_t r = real->ncclAllReduce(in, out, count, types[dtype], ncclSum, ctx, stream);
    while (r == ncclInProgress && !real->ncclCommGetAsyncError(ctx, &r) && r == ncclInProgress)
        sched_yield();
    return r ? RF_E_BACKEND : RF_OK;
}

static rf_result give_baseline(rfi_entry *e, rf_error *err)
{
    int v = 0;
    rf_baseline b = {.all_reduce = nccl_all_reduce, .ctx = e->key};
    rfi_nccl_real()->ncclGetVersion(&v);
    snprintf(b.name, sizeof b.name, "nccl %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    return rf_comm_baseline(e->comm, &b, err);
}

/* What all ranks ask for. */
static rf_result agree_on_tuning(rfi_entry *e, uint32_t *dtypes, uint32_t *seconds, rf_error *err)
{
    uint32_t mine[2] = {dtypes_to_tune(), number(RFI_SHIM_RANKFOLD_TUNE_SECONDS, SECONDS)};
    uint32_t all[8][2];
    rf_result bad = rfi_allgather(e->comm, "shim", mine, all, sizeof mine, 60000, err);
    *dtypes = mine[0];
    for (int r = 0; r < rf_comm_world(e->comm) && !bad; r++)
        *dtypes &= all[r][0];
    *seconds = all[0][1];
    if (!bad && *dtypes != mine[0])
        rfi_shim_say(1, "not tuned: RANKFOLD_TUNE is not the same on all ranks");
    return bad;
}

/* Every power of two up to the capacity. */
static size_t list_shapes(const rfi_entry *e, rf_mode mode, uint32_t dtypes,
                          rf_shape out[RFI_SHIM_DTYPES * RFI_SHIM_SIZES])
{
    size_t n = 0;
    for (int d = 0; d < RFI_SHIM_DTYPES; d++)
        for (int k = RFI_SHIM_LEAST; k <= rfi_shim_size(e->capacity); k++) {
            uint64_t bytes = 1ull << k < e->capacity ? 1ull << k : e->capacity;
            rf_shape shape = {.dtype = (rf_dtype)d, .mode = mode, .rows = 1};
            shape.hidden = bytes / rf_dtype_size(shape.dtype);
            if (dtypes >> d & 1 && rf_supports(e->comm, &shape))
                out[n++] = shape;
        }
    return n;
}

static int count_lanes(void)
{
    return on_cpu() ? 1 : RFI_LANES;
}

static rf_result prepare(rfi_entry *e, rf_error *err)
{
    rf_shape shapes[RFI_SHIM_DTYPES * RFI_SHIM_SIZES];
    uint32_t dtypes = 0, seconds = 0;
    int channel;
    rf_result bad = rf_channel_open(e->comm, "graph", &channel, err);
    if (!bad)
        bad = agree_on_tuning(e, &dtypes, &seconds, err);
    for (int l = 0; l < count_lanes() && !bad; l++) {
        rf_tune_options o = RF_TUNE_OPTIONS_INIT;
        rf_tune_summary sum = {0};
        o.budget_ms = (uint32_t)(1000ull * seconds / (unsigned)count_lanes());
        size_t n = list_shapes(e, (rf_mode)l, UINT32_MAX, shapes);
        bad = rf_prepare(e->comm, l, shapes, n, err);
        n = list_shapes(e, (rf_mode)l, dtypes, shapes);
        if (n && !bad)
            bad = rf_tune(e->comm, l, shapes, n, &o, &sum, err);
        if (sum.unfinished)
            rfi_shim_say(2,
                         "%u of %zu shapes were not tuned to the end in RANKFOLD_TUNE_SECONDS; the "
                         "next communicator goes on",
                         sum.unfinished, n);
        if (bad >= RF_E_DB && bad <= RF_E_DB_ABSENT) {
            rfi_shim_say(2, "%s", err->text); /* what is known, or was measured, is in use */
            bad = RF_OK;
        }
    }
    return bad;
}

/* Ours: measured, against NCCL, and faster. */
static int decide(rfi_entry *e)
{
    rf_shape shapes[RFI_SHIM_DTYPES * RFI_SHIM_SIZES];
    int n_ours = 0;
    memset(e->ours, 0, sizeof e->ours);
    for (int l = 0; l < count_lanes(); l++) {
        size_t n = list_shapes(e, (rf_mode)l, UINT32_MAX, shapes);
        for (size_t i = 0; i < n; i++) {
            rf_plan_info plan;
            uint64_t bytes = shapes[i].hidden * rf_dtype_size(shapes[i].dtype);
            if (rf_plan_query(e->comm, l, shapes[i].hidden, shapes[i].dtype, (rf_mode)l, &plan))
                continue;
            int known = plan.rung == RF_RUNG_FORCED || plan.baseline_us > 0;
            int ours = known && !plan.fallback;
            e->ours[l][shapes[i].dtype][rfi_shim_size(bytes)] = (unsigned char)ours;
            n_ours += ours;
        }
    }
    return n_ours;
}

static void drop(rfi_entry *e)
{
    rf_comm_destroy(e->comm);
    rf_store_close(e->store);
    rfi_order_close(&e->order);
    e->comm = NULL;
    e->store = NULL;
}

/* NULL, or why all stays NCCL's. */
static const char *set_up(rfi_entry *e, int world, int rank, uint32_t patience_ms, rf_error *err)
{
    if (world < 2 || world > 8) {
        rfi_fail(err, RF_E_ARG, rank, "shim", "a communicator of %d ranks: ours have 2 to 8",
                 world);
        return err->text;
    }
    int missing = first_missing(e->name, world, rank, patience_ms);
    if (missing >= 0) {
        rfi_fail(
            err, RF_E_PEER, missing, "shim",
            "rank %d is not here with this version of the shim: on another machine, or without "
            "it",
            missing);
        return err->text;
    }
    e->capacity = number(RFI_SHIM_RANKFOLD_CAPACITY, CAPACITY);
    int device = 0;
    rfi_nccl_real()->ncclCommCuDevice(e->key, &device);
    const char *why = rfi_order_open(&e->order, on_cpu(), device);
    if (why) /* the others hear of it by create, which fails for the same reason */
        rfi_shim_say(2, "%s", why);
    if (create(e, world, rank, err) || give_baseline(e, err) || prepare(e, err))
        return err->text;
    if (decide(e))
        return NULL;
    const char *trouble = rf_store_warning(e->store);
    if (!trouble)
        return "nothing was measured to be faster than NCCL here; RANKFOLD_TUNE=1 measures";
    rfi_fail(err, RF_E_DB, rank, "shim", "what was measured cannot be known: %s", trouble);
    return err->text;
}

void rfi_entry_set_up(rfi_entry *e, int world, int rank, uint32_t patience_ms)
{
    rf_error err = {0};
    e->n_ours = e->n_theirs = e->n_grouped = 0;
    pthread_mutex_lock(&e->lock);
    const char *why = set_up(e, world, rank, patience_ms, &err);
    if (why) {
        rfi_shim_say(1, "rank %d of %d stays with NCCL: %s", rank, world, why);
        if (e->comm)
            rf_comm_close(e->comm, CLOSE_MS, NULL);
        drop(e);
    } else {
        rfi_shim_say(2, "rank %d of %d: ours where it was measured faster", rank, world);
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- its ends ---- */

void rfi_entry_finish(rfi_entry *e)
{
    rf_error err = {0};
    pthread_mutex_lock(&e->lock);
    if (e->comm) {
        rfi_shim_say(2, "rank %d of %d: %llu all-reduces ours, %llu NCCL's, %llu in groups",
                     rf_comm_rank(e->comm), rf_comm_world(e->comm), (unsigned long long)e->n_ours,
                     (unsigned long long)e->n_theirs, (unsigned long long)e->n_grouped);
        if (rf_comm_close(e->comm, CLOSE_MS, &err))
            rfi_shim_say(2, "%s", err.text);
        drop(e);
    }
    pthread_mutex_unlock(&e->lock);
}

void rfi_entry_abort(rfi_entry *e)
{
    rf_comm *comm = __atomic_load_n(&e->comm, __ATOMIC_ACQUIRE);
    if (comm)
        rf_comm_abort(comm); /* so that a launch that holds the lock comes back */
    pthread_mutex_lock(&e->lock);
    if (e->comm)
        drop(e);
    pthread_mutex_unlock(&e->lock);
}
