/* Kernels of one transport and dtype, from the templates: kernels.c is compiled once for each. */
#ifndef RANKFOLD_TESTS_KERNELS_H
#define RANKFOLD_TESTS_KERNELS_H

#include "machine.h"

#define THREADS                                                                                    \
    2 /* of a block that move data: a tensor of a few packs keeps several blocks busy              \
       */

typedef struct kernel_row {
    machine_kernel kernel;
    uint32_t threads;
    int dependent;
} kernel_row;

#define KERNELS_FLAT                                                                               \
    4 /* of a transport: the first so many; the others are the ring's or islands' */

typedef struct kernel_table {
    int host;
    int dtype;
    kernel_row row[RF_MAX_WORLD + 1][8]; /* by world, from 2; kernel NULL: none */
} kernel_table;

extern const kernel_table kernels_peer_f32, kernels_peer_bf16, kernels_peer_f16, kernels_host_f32,
    kernels_host_bf16, kernels_host_f16;

#endif
