/* What tests/bench/gpu_peers.py calls through ctypes: a comm on a pack, and calls of it. Linked
 * with the pack and librankfold.a into one shared library. */
#include <stdio.h>
#include <string.h>

#include "core/comm.h"

extern const rf_pack PACK;
static const rf_pack *const packs[] = {&PACK};
static rf_error err;

RF_API const char *shim_error(void);
RF_API rf_comm *shim_open(const char *name, int rank, int world, int device, uint64_t capacity);
RF_API int shim_use(rf_comm *comm, uint64_t count, const char *variant, uint32_t grid);
RF_API int shim_call(rf_comm *comm, const void *in, void *out, uint64_t count, void *stream);
RF_API void shim_rebind(rf_comm *comm);
RF_API int shim_health(rf_comm *comm);
RF_API int shim_close(rf_comm *comm);

const char *shim_error(void)
{
    return err.text;
}

rf_comm *shim_open(const char *name, int rank, int world, int device, uint64_t capacity)
{
    rf_bootstrap boot;
    rf_comm *comm = NULL;
    rf_config config = RF_CONFIG_INIT;
    config.backend = RF_BACKEND_CUDA;
    config.device = device;
    config.packs = packs;
    config.n_packs = 1;
    config.capacity_bytes = capacity;
    config.flags = RF_DEPENDENT;
    if (rf_bootstrap_socket(name, rank, world, &boot, &err) == RF_OK) {
        rf_comm_create(&config, &boot, &comm, &err);
        rf_bootstrap_free(&boot);
    }
    return comm;
}

/* variant NULL: the class's default. Local, alike on all ranks. */
int shim_use(rf_comm *comm, uint64_t count, const char *variant, uint32_t grid)
{
    rf_shape shape = {.dtype = RF_BF16, .mode = RF_GRAPH, .rows = 1, .hidden = count};
    if (!variant)
        return rf_prepare(comm, 0, &shape, 1, &err);
    const rf_variant *v = rfi_variant_by_name(comm, variant);
    if (!v) {
        snprintf(err.text, sizeof err.text, "no variant %s", variant);
        return RF_E_VARIANT;
    }
    return rfi_plan_set(comm, 0, &shape, v, grid ? grid : rfi_usual_grid(comm, v, 2 * count), 0, 0,
                        &err);
}

int shim_call(rf_comm *comm, const void *in, void *out, uint64_t count, void *stream)
{
    rf_result result = rf_all_reduce(comm, 0, in, out, count, RF_BF16, stream);
    if (result)
        err = *rf_comm_error(comm);
    return result;
}

void shim_rebind(rf_comm *comm)
{
    rf_channel_rebind(comm, 0);
}

int shim_health(rf_comm *comm)
{
    rf_health health;
    rf_comm_check(comm, &health);
    return health.code;
}

int shim_close(rf_comm *comm)
{
    return rf_comm_close(comm, 10000, &err);
}
