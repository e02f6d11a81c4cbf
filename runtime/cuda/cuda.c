/* The cuda backend: a rank is a process, or a thread, with a GPU of its own; kernels run on the
 * caller's streams, in the device's primary context. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/codes.h"
#include "core/env.h"
#include "core/group.h"
#include "core/socket.h"
#include "cuda/cuda.h"

#define COPY_MS  1000u
#define CLEAR_MS 10000u

/* ---- calling the driver ---- */

rfi_cuda_scope rfi_cuda_enter(const rfi_device *d)
{
    rfi_cuda_scope scope = {CU_STREAM_CAPTURE_MODE_RELAXED};
    d->driver->cuCtxPushCurrent(d->context);
    d->driver->cuThreadExchangeStreamCaptureMode(&scope.capture_mode);
    return scope;
}

void rfi_cuda_leave(const rfi_device *d, rfi_cuda_scope scope)
{
    CUcontext ours;
    d->driver->cuThreadExchangeStreamCaptureMode(&scope.capture_mode);
    d->driver->cuCtxPopCurrent(&ours);
}

rf_result rfi_cuda_fail(const rfi_device *d, rf_error *err, const char *step, const char *what,
                        CUresult result)
{
    const char *text = NULL, *name = NULL;
    d->driver->cuGetErrorString(result, &text);
    d->driver->cuGetErrorName(result, &name);
    return rfi_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? RF_E_MEMORY : RF_E_BACKEND, d->rank,
                    step, "GPU %d: %s: %s (%s)", d->ordinal, what, text ? text : "unknown error",
                    name ? name : "?");
}

CUresult rfi_cuda_wait(const rfi_device *d, uint32_t timeout_ms)
{
    uint64_t deadline = rfi_deadline(timeout_ms);
    CUresult r;
    while ((r = d->driver->cuStreamQuery(d->stream)) == CUDA_ERROR_NOT_READY &&
           rfi_left_ms(deadline))
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    return r;
}

/* ---- devices ---- */

/* Codes of RF_ISA_LIST by compute capability. Newer devices run older code too: by the PTX that
 * every shard has. */
static const struct {
    int capability;
    uint8_t isa;
} isas[] = {
    {75, RFI_ISA_SM75}, {80, RFI_ISA_SM80},   {86, RFI_ISA_SM86},   {89, RFI_ISA_SM89},
    {90, RFI_ISA_SM90}, {100, RFI_ISA_SM100}, {120, RFI_ISA_SM120},
};
#define N_ISAS (sizeof isas / sizeof *isas)

static CUresult read_capabilities(rfi_device *d)
{
    const rfi_driver *v = d->driver;
    int major = 0, minor = 0, sms = 0;
    CUuuid uuid;
    size_t granularity = 0;
    CUmemProperties p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, d->ordinal};
    CUresult r =
        v->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->ordinal);
    if (!r)
        r = v->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                    d->ordinal);
    if (!r)
        r = v->cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->ordinal);
    if (!r)
        r = v->cuDeviceGetUuid(&uuid, d->ordinal);
    if (!r)
        r = v->cuDeviceGetPCIBusId(d->caps.place, sizeof d->caps.place, d->ordinal);
    if (!r)
        r = v->cuMemGetAllocationGranularity(&granularity, &p, 0);
    if (r)
        return r;
    snprintf(d->caps.arch, sizeof d->caps.arch, "cuda/sm%d", 10 * major + minor);
    for (size_t i = 0; i < N_ISAS; i++)
        if (10 * major + minor >= isas[i].capability)
            d->caps.isa_mask |= 1u << isas[i].isa;
    memcpy(d->caps.uuid, uuid.bytes, sizeof d->caps.uuid);
    d->caps.granularity = granularity;
    d->caps.max_grid = (uint32_t)sms; /* one block on each runs at once, whatever it needs */
    return CUDA_SUCCESS;
}

static CUresult open_device(rfi_device *d)
{
    const rfi_driver *v = d->driver;
    CUresult r = v->cuDevicePrimaryCtxRetain(&d->context, d->ordinal);
    if (r)
        return r;
    size_t bytes = RFI_CHANNELS * sizeof *d->pages + RF_PROBE_WORDS * sizeof *d->words;
    void *host = NULL;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    r = v->cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING);
    if (!r)
        r = v->cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (!r) {
        memset(host, 0, bytes);
        d->pages = host;
        d->words = (uint32_t *)(void *)(d->pages + RFI_CHANNELS);
        r = read_capabilities(d);
    }
    rfi_cuda_leave(d, scope);
    return r;
}

static void cuda_close(rfi_device *d)
{
    const rfi_driver *v = d->driver;
    if (d->context && !d->in_flight) {
        rfi_cuda_scope scope = rfi_cuda_enter(d);
        rfi_cuda_peer_forget_all(d);
        rfi_cuda_host_forget_all(d);
        rfi_cuda_unload_all(d);
        if (d->pages)
            v->cuMemFreeHost(d->pages);
        if (d->stream)
            v->cuStreamDestroy(d->stream);
        rfi_cuda_leave(d, scope);
        v->cuDevicePrimaryCtxRelease(d->ordinal);
    }
    for (int r = 0; r < RF_MAX_WORLD; r++)
        rfi_socket_close(&d->fd[r]);
    free(d->hw_text);
    free(d->env_text);
    free(d);
}

static rf_result cuda_open(const rf_config *config, rfi_device **out, rf_error *err)
{
    char why[320];
    const rfi_driver *v = rfi_driver_open(why, sizeof why);
    if (!v)
        return rfi_fail(err, RF_E_BACKEND, -1, "open", "%s", why);
    int n = 0;
    v->cuDeviceGetCount(&n);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (config->device < 0 || config->device >= n)
        return rfi_fail(err, n ? RF_E_ARG : RF_E_BACKEND, -1, "open",
                        "config.device is %d, %d GPUs are visible (CUDA_VISIBLE_DEVICES%s%s)",
                        config->device, n, visible ? "=" : " is not set", visible ? visible : "");
    rfi_device *d = calloc(1, sizeof *d);
    if (!d)
        return rfi_fail(err, RF_E_MEMORY, -1, "open", "no memory");
    d->driver = v;
    d->rank = -1;
    d->packs = config->packs;
    d->n_packs = config->n_packs;
    for (int r = 0; r < RF_MAX_WORLD; r++)
        d->fd[r] = -1;
    CUresult r = v->cuDeviceGet(&d->ordinal, config->device);
    if (!r)
        r = open_device(d);
    rf_result bad = RF_OK;
    if (r)
        bad = rfi_cuda_fail(d, err, "open", "no context on it", r);
    if (bad)
        cuda_close(d);
    else
        *out = d;
    return bad;
}

static void cuda_capabilities(const rfi_device *d, rfi_capabilities *out)
{
    *out = d->caps;
}

static rf_result cuda_join(rfi_device *d, const rfi_group *group, rf_error *err)
{
    d->rank = group->rank;
    d->world = group->world;
    memcpy(d->place, group->place, sizeof d->place);
    rf_result bad = rfi_cuda_describe(d, err);
    return bad ? bad : rfi_group_watch(group, d->fd, err);
}

/* A rank alone has no peer to store to. */
static rf_result cuda_permit(rfi_device *d, uint8_t transport, rf_error *err)
{
    const char *off = rfi_env_get(RFI_NCCL_P2P_DISABLE);
    if (transport != RFI_TRANSPORT_PEER || d->world == 1)
        return RF_OK;
    if (off && strcmp(off, "0"))
        return rfi_fail(err, RF_E_BACKEND, d->rank, "permit",
                        "NCCL_P2P_DISABLE=%.16s forbids stores between GPUs", off);
    return RF_OK;
}

/* ---- memory ---- */

/* Slots between peers: room for a two-shot of the whole capacity: a box for every rank, in both
 * phases, each rounded up to a pack; in islands there are fewer and larger ones. A one-shot needs
 * world times its size, so that it is for smaller tensors where there are more than two ranks. The
 * rest says abi.h. */
static rfi_layout cuda_layout(uint8_t transport, uint64_t capacity_bytes)
{
    rfi_layout l;
    if (transport == RFI_TRANSPORT_HOST) {
        l.slot_bytes = RF_HOST_SLOT_BYTES(capacity_bytes);
        l.region_bytes = RF_HOST_REGION_BYTES(l.slot_bytes);
        l.memory = (rf_footprint){RF_CONTROLS * sizeof(rf_control), l.region_bytes};
    } else {
        l.slot_bytes = (2 * capacity_bytes + 2 * RF_MAX_WORLD * 16 + 4095) / 4096 * 4096;
        l.region_bytes = RF_PEER_REGION_BYTES(l.slot_bytes);
        l.memory = (rf_footprint){l.region_bytes, 0};
    }
    return l;
}

static const char *cuda_misfit(const rf_variant *v, uint64_t slot_bytes, uint64_t bytes)
{
    uint64_t packs = (bytes + 15) / 16, island = v->world / 2;
    if (v->wire == RFI_WIRE_NAN && v->algo == RFI_ALGO_ONE_SHOT &&
        v->world * packs * 16 > slot_bytes)
        return "one-shot needs the room of all ranks' tensors";
    if (v->algo == RFI_ALGO_ISLANDS &&
        2 * island * ((packs + island - 1) / island) * 16 > slot_bytes)
        return "islands need twice the tensor's room";
    uint32_t pack = rfi_pack_bytes(v);
    if (v->wire == RFI_WIRE_TAG &&
        (bytes > RF_HOST_TAG_BYTES || (bytes + pack - 1) / pack * 16 > slot_bytes))
        return "is for tensors of 1 MiB at most, that fit into a slot of host memory";
    if (v->wire == RFI_WIRE_FLAG && packs > RF_RING_PACKS)
        return "more packs than the ring counts turns for";
    return packs >> 31 ? "more packs than a kernel counts" : NULL;
}

static rf_result cuda_allocate(rfi_device *d, uint8_t transport, size_t bytes, rfi_memory *out,
                               rf_error *err)
{
    return transport == RFI_TRANSPORT_HOST ? rfi_cuda_host_allocate(d, bytes, out, err)
                                           : rfi_cuda_peer_allocate(d, bytes, out, err);
}

static rf_result cuda_import(rfi_device *d, uint8_t transport, const rfi_memory *theirs,
                             int same_process, rfi_memory *out, rf_error *err)
{
    return transport == RFI_TRANSPORT_HOST
               ? rfi_cuda_host_import(d, theirs, same_process, out, err)
               : rfi_cuda_peer_import(d, theirs, same_process, out, err);
}

static void cuda_forget(rfi_device *d, rfi_memory *m)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    if (!d->in_flight && m->host)
        rfi_cuda_host_forget(d, m);
    else if (!d->in_flight)
        rfi_cuda_peer_forget(d, m);
    rfi_cuda_leave(d, scope);
    if (m->fd >= 0)
        close(m->fd);
    *m = (rfi_memory){.fd = -1};
}

/* ---- launches ---- */

static void cuda_bind(rfi_device *d, uint8_t transport, int channel, rf_params *params)
{
    params->host_ctx = &d->pages[channel];
    params->control = (rf_control *)(void *)params->peer[params->rank];
    if (transport == RFI_TRANSPORT_HOST) {
        params->kib_clocks = d->kib_clocks;
        params->control = (rf_control *)(uintptr_t)d->controls + channel * RF_CONTROLS;
    }
}

/* Is the tensor memory of this device? The driver is asked once per page (of 64 KiB). */
static rf_result check_tensor(rfi_device *d, const char *name, const void *tensor, rf_error *err)
{
    const rfi_driver *v = d->driver;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)tensor;
    uintptr_t page = ((uintptr_t)tensor >> 16) + 1, *known = &d->known[page % RFI_CUDA_KNOWN];
    if (__builtin_expect(__atomic_load_n(known, __ATOMIC_RELAXED) == page, 1))
        return RF_OK;
    int type = CU_MEMORYTYPE_HOST, ordinal = d->ordinal;
    CUresult r = v->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
    if (!r)
        v->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
    if (r || type == CU_MEMORYTYPE_HOST)
        return rfi_fail(err, RF_E_ARG, d->rank, "call",
                        "%s is memory of the host, expected is memory of GPU %d", name, d->ordinal);
    if (ordinal != d->ordinal)
        return rfi_fail(err, RF_E_ARG, d->rank, "call",
                        "%s is memory of GPU %d, expected is memory of GPU %d", name, ordinal,
                        d->ordinal);
    __atomic_store_n(known, page, __ATOMIC_RELAXED);
    return RF_OK;
}

/* What poisoned a channel, as far as the host can tell without asking the device; 0 = nothing. The
 * own kernels and this rank write to the page, peers to a region in host memory: there they leave
 * what the own kernels hear of only if they have to wait. */
static uint32_t verdict(const rfi_device *d, const rf_params *channel)
{
    const rf_page *page = channel->host_ctx;
    uint32_t word = __atomic_load_n(&page->poison, __ATOMIC_ACQUIRE);
    if (word)
        return word;
    const rfi_memory *own = d->own_host;
    uintptr_t at = own ? (uintptr_t)channel->peer[channel->rank] - (uintptr_t)own->base : 0;
    if (!own || at >= own->bytes) /* meets its peers elsewhere */
        return 0;
    const rf_control *region = (const rf_control *)(const void *)(own->host + at);
    return __atomic_load_n(&region->poison, __ATOMIC_ACQUIRE);
}

static rf_result cuda_launch(rfi_device *d, const rf_variant *variant, const rf_params *params,
                             void *stream, rf_error *err)
{
    if (__builtin_expect(verdict(d, params) != 0, 0))
        return RF_E_POISONED;
    CUfunction function = rfi_cuda_function(d, variant);
    if (!function)
        return RF_E_VARIANT;
    CUlaunchAttribute dependent = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.enabled = 1};
    CUlaunchConfig config = {.grid_x = params->grid,
                             .grid_y = 1,
                             .grid_z = 1,
                             .block_x = variant->threads,
                             .block_y = 1,
                             .block_z = 1,
                             .stream = stream,
                             .attributes = &dependent,
                             .n_attributes = variant->flags & RF_VARIANT_DEPENDENT ? 1 : 0};
    void *arguments[] = {(void *)(uintptr_t)params};
    CUcontext ours;
    CUresult r = CUDA_SUCCESS;
    d->driver->cuCtxPushCurrent(d->context);
    rf_result bad = check_tensor(d, "in", params->in, err);
    if (!bad && params->out != params->in)
        bad = check_tensor(d, "out", params->out, err);
    if (!bad) {
        d->in_flight = 1;
        r = d->driver->cuLaunchKernelEx(&config, function, arguments, NULL);
    }
    d->driver->cuCtxPopCurrent(&ours);
    return r ? rfi_cuda_fail(d, err, "call", "cuLaunchKernelEx", r) : bad;
}

/* Asking a capturing stream for its id invalidates the capture. Its handle serves: it is not reused
 * before the capture ends, and the way out of a capture is a rebind. */
static void cuda_stream_info(rfi_device *d, void *stream, rfi_stream_info *out)
{
    unsigned long long id = (uintptr_t)stream | 1ull << 63;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUcontext ours;
    d->driver->cuCtxPushCurrent(d->context);
    CUresult r = d->driver->cuStreamIsCapturing(stream, &status);
    if (!r && status == CU_STREAM_CAPTURE_STATUS_NONE)
        d->driver->cuStreamGetId(stream, &id);
    d->driver->cuCtxPopCurrent(&ours);
    *out = (rfi_stream_info){.id = id + 1, .capturing = status != CU_STREAM_CAPTURE_STATUS_NONE};
}

/* ---- health ---- */

static void cuda_read_fault(rfi_device *d, const rf_params *channel, uint32_t *poison,
                            rf_fault *out)
{
    const rf_page *page = channel->host_ctx;
    uint32_t word = verdict(d, channel), culprit = RF_POISON_CULPRIT(word);
    memcpy(out, &page->fault, sizeof *out);
    /* the record of another verdict, of none, or half written */
    if (!word || RF_POISON(out->culprit, out->code) != word)
        memset(out, 0, sizeof *out);
    /* a kernel only sees that nothing comes */
    if (RF_POISON_CODE(word) == RF_FAULT_DEADLINE && culprit < RF_MAX_WORLD &&
        rfi_socket_gone(d->fd[culprit])) {
        word = RF_POISON(culprit, RF_FAULT_DEAD);
        out->code = out->code ? RF_FAULT_DEAD : RF_FAULT_NONE;
    }
    *poison = word;
}

/* A copy engine does it, whatever the kernels do. */
static void poison_device(rfi_device *d, const rf_control *line, uint32_t word)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)line + offsetof(rf_control, poison);
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    d->words[0] = 1;
    CUresult r = d->driver->cuMemcpyDtoHAsync(d->words, at, sizeof word, d->stream);
    if (!r)
        r = rfi_cuda_wait(d, COPY_MS);
    if (!r && d->words[0] == 0) {
        d->words[0] = word;
        d->driver->cuMemcpyHtoDAsync(at, d->words, sizeof word, d->stream);
        rfi_cuda_wait(d, COPY_MS);
    }
    rfi_cuda_leave(d, scope);
}

static void poison_lines(rfi_device *d, const rf_control *lines, uint32_t word)
{
    for (int i = 0; i < RF_CONTROLS; i++)
        poison_device(d, &lines[i], word);
}

static void poison_word(uint32_t *at, uint32_t word)
{
    uint32_t healthy = 0;
    __atomic_compare_exchange_n(at, &healthy, word, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Own kernels look at the host's page, a peer's at the poison word of their own region, when they
 * wait. On entry they all look at their control lines only. Those lie in the region that peers
 * reach, or with host memory in the device's: then replays that find all they need would go on for
 * ever, so the own ones end here, and the peers' for want of them. */
static void cuda_poison(rfi_device *d, uint8_t transport, const rf_params *channel, int rank,
                        uint32_t word)
{
    rf_page *page = channel->host_ctx;
    if (rank == d->rank) {
        poison_word(&page->poison, word);
        __atomic_store_n(&page->abort, 1, __ATOMIC_SEQ_CST);
        if (transport == RFI_TRANSPORT_HOST)
            poison_lines(d, channel->control, word);
    } else if (transport == RFI_TRANSPORT_HOST) {
        unsigned char *host = rfi_cuda_host_of(d, channel->peer[rank]);
        poison_word(&((rf_control *)(void *)host)->poison, word);
    } else {
        poison_lines(d, (const rf_control *)(const void *)channel->peer[rank], word);
    }
}

/* Zero, which is the lowest of flags, and no epoch's tag before the upkeep has replaced it; but
 * between peers slots are all sentinel, words of ones. */
static CUresult clear_memory(rfi_device *d, uint8_t transport, const rf_params *channel,
                             size_t bytes)
{
    const rfi_driver *v = d->driver;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)channel->peer[d->rank];
    if (transport == RFI_TRANSPORT_HOST) {
        memset(rfi_cuda_host_of(d, channel->peer[d->rank]), 0, bytes);
        return CUDA_SUCCESS;
    }
    CUresult r = v->cuMemsetD8Async(at, 0, bytes, d->stream);
    if (!r)
        r = v->cuMemsetD8Async(at + RF_REGION_HEADER, 0xff, RF_SLOTS * channel->slot_bytes,
                               d->stream);
    return r;
}

static rf_result cuda_clear(rfi_device *d, uint8_t transport, const rf_params *channel,
                            size_t bytes, rf_error *err)
{
    const rfi_driver *v = d->driver;
    CUdeviceptr control = (CUdeviceptr)(uintptr_t)channel->control;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = clear_memory(d, transport, channel, bytes);
    if (!r)
        r = v->cuMemsetD8Async(control, 0, RF_CONTROLS * sizeof(rf_control), d->stream);
    d->words[0] = channel->generation;
    for (int i = 0; i < RF_CONTROLS && !r; i++)
        r = v->cuMemcpyHtoDAsync(control + i * sizeof(rf_control) +
                                     offsetof(rf_control, generation),
                                 d->words, sizeof channel->generation, d->stream);
    if (!r)
        r = rfi_cuda_wait(d, CLEAR_MS);
    rfi_cuda_leave(d, scope);
    memset(channel->host_ctx, 0, sizeof(rf_page));
    return r ? rfi_cuda_fail(d, err, "clear", "clearing of a channel's memory", r) : RF_OK;
}

/* ---- waiting for whatever the caller launched, on streams that only the caller knows: the whole
 * context, from a thread that may be left behind ---- */

typedef struct drain {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const rfi_driver *driver;
    CUcontext context;
    int done, left; /* left: the waiter gave up; the thread cleans up */
    CUresult result;
} drain;

static void drain_free(drain *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void *drain_thread(void *arg)
{
    drain *w = arg;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext ours;
    w->driver->cuCtxPushCurrent(w->context);
    w->driver->cuThreadExchangeStreamCaptureMode(&mode);
    CUresult r = w->driver->cuCtxSynchronize();
    w->driver->cuCtxPopCurrent(&ours);
    pthread_mutex_lock(&w->lock);
    w->result = r;
    w->done = 1;
    int left = w->left;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (left)
        drain_free(w);
    return NULL;
}

static rf_result cuda_drain(rfi_device *d, uint32_t timeout_ms)
{
    if (!d->in_flight)
        return RF_OK;
    drain *w = calloc(1, sizeof *w);
    pthread_t thread;
    pthread_attr_t detached;
    if (!w)
        return RF_E_MEMORY;
    w->driver = d->driver;
    w->context = d->context;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &detached, drain_thread, w);
    pthread_attr_destroy(&detached);
    if (failed) {
        drain_free(w);
        return RF_E_SYSTEM;
    }
    uint64_t at = rfi_deadline(timeout_ms);
    struct timespec until = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
    int late = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->done && !late)
        late = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    int done = w->done;
    CUresult r = w->result;
    w->left = !done;
    pthread_mutex_unlock(&w->lock);
    if (!done)
        return RF_E_TIMEOUT;
    drain_free(w);
    d->in_flight = r ? 1 : 0;
    return r ? RF_E_BACKEND : RF_OK;
}

/* What outlives the comm is told by the ranks' closing; the core refuses its own launches. */
static void cuda_end(rfi_device *d)
{
    (void)d;
}

const rfi_backend rfi_backend_cuda = {
    .name = "cuda",
    .transports = {RFI_TRANSPORT_PEER, RFI_TRANSPORT_HOST},
    .n_transports = 2,
    .open = cuda_open,
    .capabilities = cuda_capabilities,
    .join = cuda_join,
    .layout = cuda_layout,
    .misfit = cuda_misfit,
    .permit = cuda_permit,
    .allocate = cuda_allocate,
    .import = cuda_import,
    .put = rfi_cuda_put,
    .get = rfi_cuda_get,
    .forget = cuda_forget,
    .load = rfi_cuda_load,
    .bind = cuda_bind,
    .launch = cuda_launch,
    .stream_info = cuda_stream_info,
    .read_fault = cuda_read_fault,
    .poison = cuda_poison,
    .clear = cuda_clear,
    .drain = cuda_drain,
    .end = cuda_end,
    .close = cuda_close,
    .workbench = &rfi_cuda_workbench,
};
