/* Kernels of one transport and dtype, from the templates: kernels.c is compiled once for each. */
#ifndef RANKFOLD_TESTS_KERNELS_H
#define RANKFOLD_TESTS_KERNELS_H

#include "machine.h"

#define THREADS                                                                                    \
    2 /* of a block that move data: a tensor of a few packs keeps several blocks busy              \
       */

typedef struct kernel_row {
    machine_kernel kernel;
    uint32_t threads, unroll;
    int dependent;
    uint32_t waits; /* most steps of a fault */
    int family;     /* RF_CONTROL_* */
} kernel_row;

/* In a table: those of the slots, of the ring, and between peers two that send in turns and two of
 * islands. */
#define KERNELS_SLOTS   4
#define KERNELS_RING    4
#define KERNELS_HOST    (KERNELS_SLOTS + KERNELS_RING)
#define KERNELS_ISLANDS (KERNELS_HOST + 2) /* the first of them */
#define KERNELS_PEER    (KERNELS_ISLANDS + 2)

typedef struct kernel_table {
    int host;
    int dtype;
    uint32_t (*part_of)(uint32_t packs, uint32_t world); /* of a two-shot */
    kernel_row row[RF_MAX_WORLD + 1][KERNELS_PEER];      /* by world, from 2; kernel NULL: none */
} kernel_table;

extern const kernel_table kernels_peer_f32, kernels_peer_bf16, kernels_peer_f16, kernels_host_f32,
    kernels_host_bf16, kernels_host_f16;

#endif
