/* Two kernels that every shard carries: a few words stored into and loaded from memory that another
 * device owns, by the very instructions that the collectives use. The runtime's functional probe is
 * made of them. */
#ifndef RANKFOLD_CUDA_PROBE_CUH
#define RANKFOLD_CUDA_PROBE_CUH

#include "cuda/ptx.cuh"

RF_KERNEL(rf_probe_put, 32)(const __grid_constant__ rf_probe p)
{
    uint32_t i = thread_index();
    if (i < p.words) {
        store_word_sys(p.at + 4 * i, p.word[i]);
    }
}

RF_KERNEL(rf_probe_get, 32)(const __grid_constant__ rf_probe p)
{
    uint32_t i = thread_index();
    if (i < p.words) {
        store_word_sys(p.to + i, load_word_sys(p.at + 4 * i));
    }
}

#endif
