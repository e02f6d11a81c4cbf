#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu/gpu.h"

#ifndef PACK
#define PACK rf_pack_h200
#endif
extern const rf_pack PACK;
static const rf_pack *const packs[] = {&PACK};

int gpu_session;

double gpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int gpu_count(void)
{
    char why[320];
    int n = 0;
    const rfi_driver *v = rfi_driver_open(why, sizeof why);
    RANK_CHECK(v, "%s", why);
    v->cuDeviceGetCount(&n);
    return n;
}

void gpu_open(gpu *g, int rank, int world, size_t bytes)
{
    char why[320];
    *g = (gpu){.rank = rank, .world = world, .bytes = bytes};
    g->driver = rfi_driver_open(why, sizeof why);
    RANK_CHECK(g->driver, "%s", why);
    g->ordinal = rank % gpu_count();
    CUdevice device;
    DRIVER(g, cuDeviceGet(&device, g->ordinal));
    DRIVER(g, cuDevicePrimaryCtxRetain(&g->context, device));
    DRIVER(g, cuCtxPushCurrent(g->context));
    DRIVER(g, cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING));
    DRIVER(g, cuMemAlloc(&g->in, bytes + GPU_GUARD));
    DRIVER(g, cuMemAlloc(&g->out, bytes + GPU_GUARD));
    for (int r = 0; r < world; r++)
        g->inputs[r] = malloc(bytes + GPU_GUARD);
    g->expected = malloc(bytes + GPU_GUARD);
    g->found = malloc(bytes + 2 * GPU_GUARD);
}

void gpu_close(gpu *g)
{
    DRIVER(g, cuMemFree(g->in));
    DRIVER(g, cuMemFree(g->out));
    DRIVER(g, cuStreamDestroy(g->stream));
    for (int r = 0; r < g->world; r++)
        free(g->inputs[r]);
    free(g->expected);
    free(g->found);
    CUcontext ours;
    g->driver->cuCtxPopCurrent(&ours);
    g->driver->cuDevicePrimaryCtxRelease(g->ordinal);
}

rf_config gpu_config(const gpu *g, uint64_t capacity)
{
    rf_config config = RF_CONFIG_INIT;
    config.backend = RF_BACKEND_CUDA;
    config.device = g->ordinal;
    config.packs = packs;
    config.n_packs = 1;
    config.capacity_bytes = capacity;
    config.deadline_ms = 20000;
    config.flags = g->world > gpu_count() ? RF_SHARE_DEVICE : 0;
    return config;
}

rf_comm *gpu_comm(const gpu *g, const char *name, const rf_config *config)
{
    rf_bootstrap boot;
    rf_error err = {0};
    rf_comm *comm = NULL;
    char whole[64];
    snprintf(whole, sizeof whole, "gpu-%s-%d", name, gpu_session);
    RANK_CHECK(rf_bootstrap_socket(whole, g->rank, g->world, &boot, &err) == RF_OK, "%s", err.text);
    rf_result result = rf_comm_create(config, &boot, &comm, &err);
    rf_bootstrap_free(&boot);
    RANK_CHECK(result == RF_OK, "%s: rank %d: %s", err.step, err.rank, err.text);
    return comm;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* NaNs of all kinds (the wire's sentinel among them), infinities, both zeros, denormals. */
static const uint32_t specials[] = {0xffffffffu, 0x80008000u, 0,           0x7f807f80u,
                                    0xffff0001u, 0x00010001u, 0x7fff7fffu, 0x7c007c00u,
                                    0x80000001u, 0x7f800001u};

void gpu_fill(gpu *g, rf_dtype dtype, uint64_t count, uint64_t offset, uint64_t seed)
{
    size_t size = rf_dtype_size(dtype), bytes = count * size;
    const void *in[RF_MAX_WORLD];
    for (int r = 0; r < g->world; r++) {
        uint32_t *word = (uint32_t *)(void *)g->inputs[r];
        for (size_t i = 0; i < bytes / 4 + 1; i++) {
            uint64_t random = mix(seed * 1000003 + (uint64_t)r * 7919 + i * 31);
            int special = random >> 40 & 31;
            word[i] = special < (int)(sizeof specials / sizeof *specials) ? specials[special]
                                                                          : (uint32_t)random;
        }
        in[r] = g->inputs[r];
    }
    rf_oracle_all_reduce(in, g->expected, count, dtype, g->world);
    DRIVER(g, cuMemsetD8Async(g->out, 0x5a, g->bytes + GPU_GUARD, g->stream));
    DRIVER(g, cuMemcpyHtoDAsync(g->in + offset * size, g->inputs[g->rank], bytes, g->stream));
    DRIVER(g, cuStreamSynchronize(g->stream));
}

int gpu_expect(gpu *g, rf_dtype dtype, uint64_t count, const uint8_t *order)
{
    const void *in[RF_MAX_WORLD];
    for (int r = 0; r < g->world; r++)
        in[r] = g->inputs[r];
    rf_oracle_all_reduce(in, g->expected, count, dtype, g->world);
    memcpy(g->found, g->expected, count * rf_dtype_size(dtype));
    if (order)
        rf_oracle_islands(in, g->expected, count, dtype, g->world, order);
    return memcmp(g->found, g->expected, count * rf_dtype_size(dtype)) != 0;
}

void gpu_in_place(gpu *g, rf_dtype dtype, uint64_t count, uint64_t offset)
{
    size_t size = rf_dtype_size(dtype);
    DRIVER(g,
           cuMemcpyHtoDAsync(g->out + offset * size, g->inputs[g->rank], count * size, g->stream));
    DRIVER(g, cuStreamSynchronize(g->stream));
}

void gpu_wait(const gpu *g, const rf_comm *comm)
{
    double until = gpu_seconds() + 60;
    CUresult r;
    while ((r = g->driver->cuStreamQuery(g->stream)) == CUDA_ERROR_NOT_READY &&
           gpu_seconds() < until)
        ;
    RANK_CHECK(r == CUDA_SUCCESS, "the stream gives %d", r);
    rf_health health = {0};
    if (comm)
        rf_comm_check(comm, &health);
    RANK_CHECK(health.code == RF_OK, "%s, culprit %d", rf_strerror(health.code), health.culprit);
}

void gpu_check(gpu *g, rf_dtype dtype, uint64_t count, uint64_t offset, const char *what)
{
    size_t size = rf_dtype_size(dtype), bytes = count * size;
    DRIVER(g, cuMemcpyDtoHAsync(g->found, g->out + offset * size, bytes + 64, g->stream));
    DRIVER(g, cuStreamSynchronize(g->stream));
    size_t at = 0;
    while (at < bytes && g->found[at] == g->expected[at])
        at++;
    RANK_CHECK(at == bytes, "%s, %s x %llu: byte %zu is %02x, expected %02x", what,
               rf_dtype_name(dtype), (unsigned long long)count, at, g->found[at], g->expected[at]);
    for (size_t i = 0; i < 64; i++)
        RANK_CHECK(g->found[bytes + i] == 0x5a, "%s, %s x %llu: wrote behind the output", what,
                   rf_dtype_name(dtype), (unsigned long long)count);
}
