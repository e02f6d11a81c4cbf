/* The caller's tensors in packs of 16 bytes, or of 12 or 14 for a wire that has no room for more:
 * any count, any element-aligned pointer. Every element is read before anything of its pack is
 * written, by the thread that writes it, so `in` may equal `out`. */
#ifndef RANKFOLD_CUDA_TENSOR_CUH
#define RANKFOLD_CUDA_TENSOR_CUH

#include "cuda/numbers.cuh"

typedef struct rf_tensor {
    const rf_params *p;
    uint32_t pack_bytes; /* 16, 14 or 12 */
    uint32_t packs;      /* the last one may be partial */
    uint32_t fast_packs; /* up to here packs are whole and aligned; 0 where a pointer is not */
} rf_tensor;

RF_DEVICE rf_tensor tensor_of(const rf_params *p, uint32_t pack_bytes)
{
    rf_tensor t;
    uint32_t lanes = pack_bytes / RF_ELEMENT_BYTES;
    /* bits of a pointer that is not aligned */
    uint32_t odd = pack_bytes == 16 ? 15 : pack_bytes == 12 ? 3 : 1;
    t.p = p;
    t.pack_bytes = pack_bytes;
    /* what travels in smaller packs is small, and 32 bits are divided sooner */
    uint32_t whole = pack_bytes == 16 ? (uint32_t)(p->count / lanes) : (uint32_t)p->count / lanes;
    t.packs = whole + ((uint32_t)p->count != whole * lanes);
    t.fast_packs = (((uintptr_t)p->in | (uintptr_t)p->out) & odd) ? 0 : whole;
    return t;
}

/* The first n elements of a pack, the others zero. None is used before all are on their way: most
 * sizes are no multiple of 12 or 14 bytes, and the last pack should be as fast as the rest. (Loop
 * turns that waited for each other made 2 KiB through host memory take 4.2 us instead of 3.1.) */
RF_COLD rf_pack16 load_elements(const void *at, uint32_t n)
{
    rf_pack16 v = {{0, 0, 0, 0}};
    uint32_t e[RF_LANES];
#pragma unroll
    for (uint32_t i = 0; i < RF_LANES; i++) {
        e[i] = i < n ? ((const rf_element *)at)[i] : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < RF_LANES; i++) {
        v.w[i * RF_ELEMENT_BYTES / 4] |= e[i] << 8 * (i * RF_ELEMENT_BYTES % 4);
    }
    return v;
}

RF_COLD void store_elements(void *at, uint32_t n, rf_pack16 v)
{
#pragma unroll
    for (uint32_t i = 0; i < RF_LANES; i++) {
        if (i < n) {
            uint32_t w = v.w[i * RF_ELEMENT_BYTES / 4];
            ((rf_element *)at)[i] = (rf_element)(w >> 8 * (i * RF_ELEMENT_BYTES % 4));
        }
    }
}

/* Elements of the tensor in a pack of it: none is empty. */
RF_DEVICE uint32_t tensor_elements(const rf_tensor *t, uint32_t pack)
{
    uint32_t lanes = t->pack_bytes / RF_ELEMENT_BYTES;
    uint64_t left = t->p->count - (uint64_t)pack * lanes;
    return left < lanes ? (uint32_t)left : lanes;
}

/* Every second pack of 14 bytes begins in the middle of a word: there the odd half is the first,
 * else the last. */
RF_DEVICE rf_pack16 load_plain14(const unsigned char *at)
{
    uint32_t odd = (uint32_t)(uintptr_t)at & 2;
    rf_pack16 v = load_plain12(at + odd);
    uint32_t half = load_plain2(odd ? at : at + 12);
    if (odd) {
        v.w[3] = v.w[2] >> 16;
        v.w[2] = v.w[1] >> 16 | v.w[2] << 16;
        v.w[1] = v.w[0] >> 16 | v.w[1] << 16;
        v.w[0] = half | v.w[0] << 16;
    } else {
        v.w[3] = half;
    }
    return v;
}

RF_DEVICE void store_plain14(unsigned char *at, rf_pack16 v)
{
    uint32_t odd = (uint32_t)(uintptr_t)at & 2, half = v.w[3];
    if (odd) {
        half = v.w[0];
        v.w[0] = v.w[0] >> 16 | v.w[1] << 16;
        v.w[1] = v.w[1] >> 16 | v.w[2] << 16;
        v.w[2] = v.w[2] >> 16 | v.w[3] << 16;
    }
    store_plain12(at + odd, v);
    store_plain2(odd ? at : at + 12, half);
}

RF_DEVICE rf_pack16 tensor_load(const rf_tensor *t, uint32_t pack)
{
    const unsigned char *at = (const unsigned char *)t->p->in + (uint64_t)pack * t->pack_bytes;
    if (__builtin_expect(pack >= t->fast_packs, 0)) {
        return load_elements(at, tensor_elements(t, pack));
    }
    return t->pack_bytes == 16   ? load_plain(at)
           : t->pack_bytes == 14 ? load_plain14(at)
                                 : load_plain12(at);
}

RF_DEVICE void tensor_store(const rf_tensor *t, uint32_t pack, rf_pack16 v)
{
    unsigned char *at = (unsigned char *)t->p->out + (uint64_t)pack * t->pack_bytes;
    if (__builtin_expect(pack >= t->fast_packs, 0)) {
        store_elements(at, tensor_elements(t, pack), v);
    } else if (t->pack_bytes == 16) {
        store_plain(at, v);
    } else if (t->pack_bytes == 14) {
        store_plain14(at, v);
    } else {
        store_plain12(at, v);
    }
}

#endif
