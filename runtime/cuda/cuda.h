/* Private to the cuda backend. driver.c: the driver's entry points; cuda.c: the table, devices,
 * launches; peer.c, host.c: memory that
 * ranks share; image.c: shards and their kernels; facts.c: what the
 * device is; workbench.c: what the tuner drives. */
#ifndef RANKFOLD_CUDA_H
#define RANKFOLD_CUDA_H

#include "core/backend.h"
#include "core/config.h"
#include "cuda/driver.h"

typedef struct rfi_cuda_mapping {
    CUdeviceptr at; /* 0 = free place */
    size_t bytes;   /* whole granules */
    CUmemHandle handle;
} rfi_cuda_mapping;

#define RFI_CUDA_KNOWN 64

typedef struct rfi_cuda_image {
    const rf_shard *shard;
    CUlibrary library;
    CUfunction *functions; /* of shard->variants; NULL = not loaded */
} rfi_cuda_image;

struct rfi_device {
    const rfi_driver *driver;
    CUdevice ordinal;
    CUcontext context; /* the device's primary one, which the caller uses too */
    CUstream stream;   /* probe, clear, poison */
    rfi_capabilities caps;
    char *hw_text, *env_text;
    uint32_t kib_clocks;
    const rf_pack *const *packs;
    size_t n_packs;
    int rank, world;
    rf_page *pages;                      /* host memory that the device maps: one per channel ... */
    uint32_t *words;                     /* ... and RF_PROBE_WORDS */
    rfi_cuda_mapping maps[RF_MAX_WORLD]; /* peer: own and imported */
    rfi_memory hosts[RF_MAX_WORLD];      /* host: own and imported; host NULL = free place */
    rfi_memory *own_host;                /* among them */
    CUdeviceptr controls;                /* RF_CONTROLS lines for each channel */
    char place[RF_MAX_WORLD][RFI_PLACE]; /* of each rank: its bus address */
    rfi_cuda_image *images;
    size_t n_images;
    int fd[RF_MAX_WORLD]; /* connection to each rank, -1 = none: closed at the far end = gone */
    uintptr_t known[RFI_CUDA_KNOWN]; /* of callers' tensors: pages of this device, as seen before */
    /* Launches may still run. Then nothing that they use is given back: freeing would wait for a
     * kernel that waits for a peer. Such memory stays until the process ends. */
    int in_flight;
};

/* Between these the device's context is current, and driver calls do not disturb a capture of
 * another thread. */
typedef struct rfi_cuda_scope {
    int capture_mode;
} rfi_cuda_scope;
rfi_cuda_scope rfi_cuda_enter(const rfi_device *d);
void rfi_cuda_leave(const rfi_device *d, rfi_cuda_scope scope);

/* E_MEMORY, else E_BACKEND, with the driver's own words after `what`. */
rf_result rfi_cuda_fail(const rfi_device *d, rf_error *err, const char *step, const char *what,
                        CUresult result);
/* Waits for the own stream, at most `timeout_ms`. */
CUresult rfi_cuda_wait(const rfi_device *d, uint32_t timeout_ms);

/* facts.c. Once the places of all ranks are known: fills caps.distance, the texts and kib_clocks.
 * E_MEMORY, E_BACKEND. */
rf_result rfi_cuda_describe(rfi_device *d, rf_error *err);
int rfi_cuda_node(const char *bus); /* of NUMA; -1 = unknown */
/* rf_params.kib_clocks, of a link as sysfs tells it ("32.0 GT/s PCIe", "16") and an SM's clock:
 * pure. */
uint32_t rfi_cuda_link_clocks(const char *speed, const char *width, int khz);
/* What two devices share on their way, by their real paths in sysfs: "switch", "root" (complex), or
 * NULL. Pure. */
const char *rfi_cuda_route(const char *a, const char *b);

/* peer.c. The context is current for `forget`. */
rf_result rfi_cuda_peer_allocate(rfi_device *d, size_t bytes, rfi_memory *out, rf_error *err);
rf_result rfi_cuda_peer_import(rfi_device *d, const rfi_memory *theirs, int same_process,
                               rfi_memory *out, rf_error *err);
void rfi_cuda_peer_forget(rfi_device *d, const rfi_memory *m);
void rfi_cuda_peer_forget_all(rfi_device *d);

/* host.c, likewise. */
rf_result rfi_cuda_host_allocate(rfi_device *d, size_t bytes, rfi_memory *out, rf_error *err);
rf_result rfi_cuda_host_import(rfi_device *d, const rfi_memory *theirs, int same_process,
                               rfi_memory *out, rf_error *err);
void rfi_cuda_host_forget(rfi_device *d, const rfi_memory *m);
void rfi_cuda_host_forget_all(rfi_device *d);
/* Where this process finds what its device addresses by `at`; NULL = not host memory. */
unsigned char *rfi_cuda_host_of(const rfi_device *d, const unsigned char *at);

/* workbench.c */
extern const rfi_workbench rfi_cuda_workbench;

/* image.c */
rf_result rfi_cuda_load(rfi_device *d, const rf_shard *shard, const rf_variant *variant,
                        rf_error *err);
CUfunction rfi_cuda_function(const rfi_device *d, const rf_variant *variant); /* NULL: not loaded */
rf_result rfi_cuda_put(rfi_device *d, unsigned char *at, const void *from, size_t bytes);
rf_result rfi_cuda_get(rfi_device *d, const unsigned char *at, void *to, size_t bytes);
void rfi_cuda_unload_all(rfi_device *d);

#endif
