/* The cpu backend: ranks are processes or threads, kernels run on the calling thread or on a
 * stream's. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/codes.h"
#include "core/config.h"
#include "core/group.h"
#include "core/shared.h"
#include "cpu/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- floating-point state: all exceptions masked, round to nearest, denormals kept ---- */

#define MXCSR_WANTED 0x1f80u
#define MXCSR_FLAGS  0x003fu

static unsigned enter_fp(void)
{
#if defined(__x86_64__)
    unsigned callers = _mm_getcsr();
    if ((callers & ~MXCSR_FLAGS) != MXCSR_WANTED)
        _mm_setcsr(MXCSR_WANTED);
    return callers;
#else
    return 0;
#endif
}

static void leave_fp(unsigned callers)
{
#if defined(__x86_64__)
    _mm_setcsr(callers);
#else
    (void)callers;
#endif
}

/* ---- devices ---- */

void rfi_cpu_retain(rfi_device *d)
{
    __atomic_add_fetch(&d->users, 1, __ATOMIC_SEQ_CST);
}

static void let_go(rfi_device *d)
{
    for (int i = 0; i < RFI_CPU_HELD; i++)
        if (d->held[i]) {
            rfi_shared_leave(d->held[i]);
            d->held[i] = NULL;
        }
}

void rfi_cpu_release(rfi_device *d)
{
    if (__atomic_sub_fetch(&d->users, 1, __ATOMIC_ACQ_REL))
        return;
    let_go(d);
    for (int r = 0; r < RF_MAX_WORLD; r++)
        if (d->fd[r] >= 0)
            close(d->fd[r]);
    free(d->hw_text);
    free(d->env_text);
    free(d);
}

static rf_result cpu_open(const rf_config *config, rfi_device **out, rf_error *err)
{
    (void)config;
    rfi_device *d = calloc(1, sizeof *d);
    if (!d)
        return rfi_fail(err, RF_E_MEMORY, -1, "open", "no memory");
    d->users = 1;
    for (int r = 0; r < RF_MAX_WORLD; r++)
        d->fd[r] = -1;
    rfi_cpu_facts(&d->caps);
    d->caps.hw_text = d->hw_text = rfi_cpu_hw_text(&d->caps);
    if (!d->hw_text) {
        rfi_cpu_release(d);
        return rfi_fail(err, RF_E_MEMORY, -1, "open", "no memory");
    }
    *out = d;
    return RF_OK;
}

static void cpu_capabilities(const rfi_device *d, rfi_capabilities *out)
{
    *out = d->caps;
}

/* With a cpu for every rank, a peer is a fraction of a microsecond late: spin, but not for long,
 * since others may want the cpu too, and a yield that finds nobody is cheap (0.16 us measured).
 * With fewer cpus than ranks, the peer cannot even run while we spin: yield at once, and long
 * enough that sleeping stays the exception. */
static rf_result cpu_join(rfi_device *d, const rfi_group *group, rf_error *err)
{
    int crowded = (uint32_t)group->world > group->cpus;
    d->rank = group->rank;
    d->world = group->world;
    d->yields = crowded ? 256 : 1000;
    d->host = (rf_cpu_host){.wait = rfi_cpu_wait,
                            .wake = rfi_cpu_wake,
                            .fail = rfi_cpu_fail,
                            .spin = crowded ? 16 : 64};
    memset(d->caps.distance, 1, sizeof d->caps.distance); /* all memory is the machine's */
    d->caps.env_text = d->env_text = rfi_cpu_env_text(&d->caps, group->cpus);
    if (!d->env_text)
        return rfi_fail(err, RF_E_MEMORY, d->rank, "identity", "no memory");
    return rfi_group_watch(group, d->fd, err);
}

static rfi_layout cpu_layout(uint8_t transport, uint64_t capacity_bytes)
{
    (void)transport;
    uint64_t pages = (capacity_bytes + 4095) / 4096 * 4096;
    rfi_layout l = {.slot_bytes = pages < RFI_SLOT_MAX ? pages : RFI_SLOT_MAX};
    l.region_bytes = l.memory.host_bytes = RF_REGION_HEADER + RF_SLOTS * l.slot_bytes;
    return l;
}

/* Any size goes through a slot in steps. */
static const char *cpu_misfit(const rf_variant *variant, uint64_t slot_bytes, uint64_t bytes)
{
    (void)variant, (void)slot_bytes, (void)bytes;
    return NULL;
}

static rf_result cpu_permit(rfi_device *d, uint8_t transport, rf_error *err)
{
    (void)d, (void)transport, (void)err;
    return RF_OK;
}

static rf_result cpu_put(rfi_device *d, unsigned char *at, const void *from, size_t bytes)
{
    (void)d;
    const unsigned char *src = from;
    for (size_t i = 0; i < bytes; i++)
        __atomic_store_n(at + i, src[i], __ATOMIC_RELAXED);
    return RF_OK;
}

static rf_result cpu_get(rfi_device *d, const unsigned char *at, void *to, size_t bytes)
{
    (void)d;
    unsigned char *dst = to;
    for (size_t i = 0; i < bytes; i++)
        dst[i] = __atomic_load_n(at + i, __ATOMIC_RELAXED);
    return RF_OK;
}

static void cpu_end(rfi_device *d)
{
    __atomic_store_n(&d->ended, 1, __ATOMIC_SEQ_CST);
}

/* After `end`: a launch counts itself in `in_flight` before it looks at `ended`. */
static void cpu_forget(rfi_device *d, rfi_memory *m)
{
    for (int i = 0; i < RFI_CPU_HELD; i++)
        if (m->base && d->held[i] == m->base && !__atomic_load_n(&d->in_flight, __ATOMIC_SEQ_CST)) {
            d->held[i] = NULL;
            rfi_shared_leave(m->base);
        }
    if (m->fd >= 0)
        close(m->fd);
    *m = (rfi_memory){.fd = -1};
}

static rf_result cpu_load(rfi_device *d, const rf_shard *shard, const rf_variant *variant,
                          rf_error *err)
{
    (void)d, (void)shard, (void)variant,
        (void)err; /* linked code is there; nothing is lazy but the linker */
    return RF_OK;
}

/* ---- launches ---- */

static uint32_t poison_of(const rf_params *p)
{
    const rf_region *own = (const rf_region *)(const void *)p->peer[p->rank];
    return __atomic_load_n(&own->control.poison, __ATOMIC_RELAXED);
}

/* Did the kernel that just ran give up? A poison word alone does not say so: a peer may have
 * written it after our last step, and then the sum is there and the next call reports. */
static rf_result outcome(const rf_params *p, uint64_t epoch_before)
{
    const rf_region *own = (const rf_region *)(const void *)p->peer[p->rank];
    uint32_t poison = poison_of(p);
    if (!poison)
        return RF_OK;
    uint32_t fault = __atomic_load_n(&own->fault.code, __ATOMIC_ACQUIRE);
    if (fault)
        return rfi_fault_result(fault);
    if (own->control.epoch != epoch_before)
        return RF_OK;
    return rfi_fault_result(RF_POISON_CODE(poison));
}

static void cpu_bind(rfi_device *d, uint8_t transport, int channel, rf_params *params)
{
    (void)transport, (void)channel;
    params->host = &d->host;
    params->host_ctx = d;
}

rf_result rfi_cpu_run(const rf_variant *variant, const rf_params *p)
{
    if (__builtin_expect(poison_of(p), 0))
        return RF_E_POISONED;
    uint64_t epoch = ((const rf_region *)(const void *)p->peer[p->rank])->control.epoch;
    unsigned callers = enter_fp();
    variant->entry(p);
    leave_fp(callers);
    return outcome(p, epoch);
}

static rf_result cpu_launch(rfi_device *d, const rf_variant *variant, const rf_params *params,
                            void *stream, rf_error *err)
{
    (void)err;
    if (!stream)
        return rfi_cpu_run(variant, params);
    return poison_of(params) ? RF_E_POISONED : rfi_cpu_enqueue(stream, d, variant, params);
}

static void cpu_stream_info(rfi_device *d, void *stream, rfi_stream_info *out)
{
    (void)d;
    rfi_cpu_stream_info(stream, out);
}

/* ---- health ---- */

static void cpu_read_fault(rfi_device *d, const rf_params *channel, uint32_t *poison, rf_fault *out)
{
    (void)d;
    const rf_region *r = (const rf_region *)(const void *)channel->peer[channel->rank];
    memset(out, 0, sizeof *out);
    *poison = __atomic_load_n(&r->control.poison, __ATOMIC_ACQUIRE);
    out->code = __atomic_load_n(&r->fault.code, __ATOMIC_ACQUIRE);
    if (!out->code)
        return;
    out->culprit = __atomic_load_n(&r->fault.culprit, __ATOMIC_RELAXED);
    out->step = __atomic_load_n(&r->fault.step, __ATOMIC_RELAXED);
    out->sequence = __atomic_load_n(&r->fault.sequence, __ATOMIC_RELAXED);
    out->expected = __atomic_load_n(&r->fault.expected, __ATOMIC_RELAXED);
    out->found = __atomic_load_n(&r->fault.found, __ATOMIC_RELAXED);
}

static void cpu_poison(rfi_device *d, uint8_t transport, const rf_params *channel, int rank,
                       uint32_t word)
{
    (void)d, (void)transport;
    rfi_cpu_poison(channel->peer[rank], word);
}

/* The header alone: nothing in a slot is valid without a sequence number that says so. */
static rf_result cpu_clear(rfi_device *d, uint8_t transport, const rf_params *channel, size_t bytes,
                           rf_error *err)
{
    (void)d, (void)transport, (void)bytes, (void)err;
    rf_region *r = (rf_region *)(void *)channel->peer[channel->rank];
    memset(r, 0, RF_REGION_HEADER);
    __atomic_store_n(&r->control.generation, channel->generation, __ATOMIC_RELEASE);
    return RF_OK;
}

static rf_result cpu_drain(rfi_device *d, uint32_t timeout_ms)
{
    uint64_t deadline = rfi_deadline(timeout_ms);
    while (__atomic_load_n(&d->in_flight, __ATOMIC_ACQUIRE)) {
        if (!rfi_left_ms(deadline))
            return RF_E_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return RF_OK;
}

static void cpu_close(rfi_device *d)
{
    cpu_end(d);
    rfi_cpu_release(d);
}

const rfi_backend rfi_backend_cpu = {
    .name = "cpu",
    .transports = {RFI_TRANSPORT_CPU},
    .n_transports = 1,
    .open = cpu_open,
    .capabilities = cpu_capabilities,
    .join = cpu_join,
    .layout = cpu_layout,
    .misfit = cpu_misfit,
    .permit = cpu_permit,
    .allocate = rfi_cpu_allocate,
    .import = rfi_cpu_import,
    .put = cpu_put,
    .get = cpu_get,
    .forget = cpu_forget,
    .load = cpu_load,
    .bind = cpu_bind,
    .launch = cpu_launch,
    .stream_info = cpu_stream_info,
    .read_fault = cpu_read_fault,
    .poison = cpu_poison,
    .clear = cpu_clear,
    .drain = cpu_drain,
    .end = cpu_end,
    .close = cpu_close,
    .workbench = &rfi_cpu_workbench,
};
