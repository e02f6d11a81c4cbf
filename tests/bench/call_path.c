/* What a call of a prepared shape costs before the kernel: rf_all_reduce with a kernel that returns
 * at once, in world 1. Prints nanoseconds (minimum and median over batches), and how many bytes
 * were allocated meanwhile. */
#define _GNU_SOURCE
#include <malloc.h>

#include "abi.h"
#include "allreduce.h"
#include "rankfold.h"

#define CALLS 100000

extern const int rfi_abi_4;

static void nothing(const rf_params *p)
{
    (void)p;
}

static const rf_variant variant = {.hash = {1},
                                   .name = "ar_w1_f32_h0_os_cpu_flag_scalar_u1_ca",
                                   .world = 1,
                                   .unroll = 1,
                                   .entry = nothing};
static const rf_shard shard = {.name = "w1", .world = 1, .n = 1, .variants = &variant};
static const rf_shard *const shards[] = {&shard};
static const rf_pack pack = {.abi = RF_ABI,
                             .size = sizeof(rf_pack),
                             .sku = "null",
                             .toolchain = "none",
                             .abi_witness = &rfi_abi_4,
                             .n_shards = 1,
                             .n_variants = 1,
                             .shards = shards};

int main(void)
{
    const rf_pack *packs[] = {&pack};
    rf_config config = RF_CONFIG_INIT;
    config.packs = packs, config.n_packs = 1;
    rf_comm *comm;
    rf_error err = {0};
    rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 4096};
    static float in[4096], out[4096];
    if (rf_comm_create_all(&config, 1, &comm, &err) != RF_OK ||
        rf_prepare(comm, 0, &shape, 1, &err) != RF_OK) {
        fprintf(stderr, "call_path: %s: %s\n", err.step, err.text);
        return 1;
    }
    double ns[BATCHES];
    size_t before = mallinfo2().uordblks;
    for (int b = 0; b < BATCHES; b++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++)
            if (rf_all_reduce(comm, 0, in, out, 4096, RF_F32, NULL) != RF_OK)
                return 1;
        ns[b] = (now_ns() - start) / CALLS;
    }
    size_t after = mallinfo2().uordblks;
    qsort(ns, BATCHES, sizeof *ns, ascending);
    printf("%.1f %.1f %zd\n", ns[0], ns[BATCHES / 2], (ssize_t)(after - before));
    rf_comm_destroy(comm);
    return 0;
}
