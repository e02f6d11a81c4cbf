/* Shards are fatbins inside the program; a kernel is loaded, for real, before anything may spin:
 * lazy loading waits for running kernels, which wait for us. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/codes.h"
#include "core/group.h"
#include "cuda/cuda.h"

#define PROBE_MS 1000u

/* The image of a shard, opened on first use. NULL: see *err. */
static rfi_cuda_image *image_of(rfi_device *d, const rf_shard *shard, rf_error *err)
{
    for (size_t i = 0; i < d->n_images; i++)
        if (d->images[i].shard == shard)
            return &d->images[i];
    rfi_cuda_image *images = realloc(d->images, (d->n_images + 1) * sizeof *images);
    if (images)
        d->images = images;
    CUfunction *functions = calloc(shard->n + 1, sizeof *functions);
    if (!images || !functions) {
        free(functions);
        rfi_fail(err, RF_E_MEMORY, d->rank, "packs", "no memory");
        return NULL;
    }
    CUlibrary library;
    CUresult r = d->driver->cuLibraryLoadData(&library, shard->image, NULL, NULL, 0, NULL, NULL, 0);
    if (r) {
        free(functions);
        char what[96];
        snprintf(what, sizeof what, "shard %s on %s", shard->name, d->caps.arch);
        rfi_cuda_fail(d, err, "packs", what, r);
        return NULL;
    }
    images[d->n_images] = (rfi_cuda_image){shard, library, functions};
    return &images[d->n_images++];
}

static CUresult load_kernel(const rfi_device *d, CUlibrary library, const char *name,
                            CUfunction *out)
{
    CUkernel kernel;
    CUfunction function;
    CUresult r = d->driver->cuLibraryGetKernel(&kernel, library, name);
    if (!r)
        r = d->driver->cuKernelGetFunction(&function, kernel);
    if (!r)
        r = d->driver->cuFuncLoad(function);
    if (!r)
        *out = function;
    return r;
}

rf_result rfi_cuda_load(rfi_device *d, const rf_shard *shard, const rf_variant *variant,
                        rf_error *err)
{
    if (rfi_cuda_function(d, variant))
        return RF_OK;
    if (!shard || !shard->image)
        return rfi_fail(err, RF_E_PACK, d->rank, "packs", "%s: its shard has no CUDA code",
                        variant->name);
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    rf_result bad = RF_E_PACK;
    rfi_cuda_image *image = image_of(d, shard, err);
    if (image) {
        char name[128];
        if (variant->by_rank)
            snprintf(name, sizeof name, "%s_r%d", variant->name, d->rank);
        else
            snprintf(name, sizeof name, "%s", variant->name);
        CUresult r =
            load_kernel(d, image->library, name, &image->functions[variant - shard->variants]);
        bad = r ? rfi_cuda_fail(d, err, "packs", name, r) : RF_OK;
    }
    rfi_cuda_leave(d, scope);
    return bad;
}

CUfunction rfi_cuda_function(const rfi_device *d, const rf_variant *variant)
{
    for (size_t i = 0; i < d->n_images; i++) {
        const rf_shard *shard = d->images[i].shard;
        if (variant >= shard->variants && variant < shard->variants + shard->n)
            return d->images[i].functions[variant - shard->variants];
    }
    return NULL;
}

/* ---- probe ---- */

/* Any shard that runs here has the two kernels. */
static const rf_shard *probe_shard(const rfi_device *d)
{
    for (size_t p = 0; p < d->n_packs; p++)
        for (uint32_t s = 0; s < d->packs[p]->n_shards; s++) {
            const rf_shard *shard = d->packs[p]->shards[s];
            if (shard->image && shard->n && (int)shard->world == d->world &&
                d->caps.isa_mask >> shard->variants[0].isa & 1)
                return shard;
        }
    return NULL;
}

static rf_result run_probe(rfi_device *d, const char *name, rf_probe *probe)
{
    const rf_shard *shard = probe_shard(d);
    if (!shard)
        return RF_E_VARIANT;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    rfi_cuda_image *image = image_of(d, shard, NULL);
    CUfunction function;
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, d->stream, NULL, 0};
    void *arguments[] = {probe};
    CUresult r = image ? load_kernel(d, image->library, name, &function) : CUDA_ERROR_NOT_FOUND;
    if (!r)
        r = d->driver->cuLaunchKernelEx(&config, function, arguments, NULL);
    if (!r)
        r = rfi_cuda_wait(d, PROBE_MS);
    rfi_cuda_leave(d, scope);
    return r ? RF_E_BACKEND : RF_OK;
}

rf_result rfi_cuda_put(rfi_device *d, unsigned char *at, const void *from, size_t bytes)
{
    rf_probe probe = {.at = at, .words = (uint32_t)(bytes / 4)};
    if (bytes % 4 || bytes > sizeof probe.word)
        return RF_E_ARG;
    memcpy(probe.word, from, bytes);
    return run_probe(d, "rf_probe_put", &probe);
}

rf_result rfi_cuda_get(rfi_device *d, const unsigned char *at, void *to, size_t bytes)
{
    rf_probe probe = {
        .at = (unsigned char *)(uintptr_t)at, .to = d->words, .words = (uint32_t)(bytes / 4)};
    if (bytes % 4 || bytes > sizeof probe.word)
        return RF_E_ARG;
    rf_result bad = run_probe(d, "rf_probe_get", &probe);
    if (!bad)
        memcpy(to, d->words, bytes);
    return bad;
}

void rfi_cuda_unload_all(rfi_device *d)
{
    for (size_t i = 0; i < d->n_images; i++) {
        d->driver->cuLibraryUnload(d->images[i].library);
        free(d->images[i].functions);
    }
    free(d->images);
    d->images = NULL;
    d->n_images = 0;
}
