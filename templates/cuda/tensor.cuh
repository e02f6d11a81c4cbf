/* The caller's tensors in packs of 16 bytes, or of 12 for a wire that has no room for more: any
 * count, any element-aligned pointer. Every element is read before anything of its pack is written,
 * by the thread that writes it, so `in` may equal `out`. */
#ifndef RANKFOLD_CUDA_TENSOR_CUH
#define RANKFOLD_CUDA_TENSOR_CUH

#include "cuda/numbers.cuh"

typedef struct rf_tensor {
    const rf_params *p;
    uint32_t pack_bytes; /* 16 or 12 */
    uint32_t packs;      /* the last one may be partial */
    uint32_t fast_packs; /* up to here packs are whole and aligned; 0 where a pointer is not */
} rf_tensor;

RF_DEVICE rf_tensor tensor_of(const rf_params *p, uint32_t pack_bytes)
{
    rf_tensor t;
    uint32_t lanes = pack_bytes / RF_ELEMENT_BYTES;
    uint32_t odd = pack_bytes == 16 ? 15 : 3; /* bits of a pointer that is not aligned */
    t.p = p;
    t.pack_bytes = pack_bytes;
    t.packs = (uint32_t)((p->count + lanes - 1) / lanes);
    t.fast_packs =
        (((uintptr_t)p->in | (uintptr_t)p->out) & odd) ? 0 : (uint32_t)(p->count / lanes);
    return t;
}

/* Element by element; lanes beyond the tensor or the pack are zero. */
RF_COLD rf_pack16 load_elements(const rf_params *p, uint32_t pack, int lanes)
{
    rf_pack16 v = {{0, 0, 0, 0}};
    uint64_t first = (uint64_t)pack * (uint32_t)lanes;
#pragma unroll
    for (int i = 0; i < RF_LANES; i++) {
        if (i < lanes && first + i < p->count) {
#if RF_ELEMENT_BYTES == 4
            v.w[i] = ((const uint32_t *)p->in)[first + i];
#else
            v.w[i / 2] |= (uint32_t)((const uint16_t *)p->in)[first + i] << 16 * (i % 2);
#endif
        }
    }
    return v;
}

RF_COLD void store_elements(const rf_params *p, uint32_t pack, int lanes, rf_pack16 v)
{
    uint64_t first = (uint64_t)pack * (uint32_t)lanes;
#pragma unroll
    for (int i = 0; i < RF_LANES; i++) {
        if (i < lanes && first + i < p->count) {
#if RF_ELEMENT_BYTES == 4
            ((uint32_t *)p->out)[first + i] = v.w[i];
#else
            ((uint16_t *)p->out)[first + i] = (uint16_t)(v.w[i / 2] >> 16 * (i % 2));
#endif
        }
    }
}

RF_DEVICE rf_pack16 tensor_load(const rf_tensor *t, uint32_t pack)
{
    if (__builtin_expect(pack < t->fast_packs, 1)) {
        const unsigned char *at = (const unsigned char *)t->p->in + (uint64_t)pack * t->pack_bytes;
        return t->pack_bytes == 16 ? load_plain(at) : load_plain12(at);
    }
    return load_elements(t->p, pack, (int)t->pack_bytes / RF_ELEMENT_BYTES);
}

RF_DEVICE void tensor_store(const rf_tensor *t, uint32_t pack, rf_pack16 v)
{
    unsigned char *at = (unsigned char *)t->p->out + (uint64_t)pack * t->pack_bytes;
    if (__builtin_expect(pack >= t->fast_packs, 0)) {
        store_elements(t->p, pack, (int)t->pack_bytes / RF_ELEMENT_BYTES, v);
    } else if (t->pack_bytes == 16) {
        store_plain(at, v);
    } else {
        store_plain12(at, v);
    }
}

#endif
