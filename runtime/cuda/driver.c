#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static rfi_driver driver;
static char trouble[320]; /* empty: the driver is usable */
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef CUresult (*get_proc_fn)(const char *symbol, void **at, int version, uint64_t flags,
                                int *status);

static const struct entry {
    const char *name;
    int version;
    size_t offset;
} entries[] = {
#define RF_X(name, version, parameters) {#name, version, offsetof(rfi_driver, name)},
    RFI_DRIVER_LIST(RF_X)
#undef RF_X
};

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *text = dlerror();
        snprintf(trouble, sizeof trouble, "no CUDA driver: %.250s", text ? text : "unknown reason");
        return;
    }
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    CUresult (*get_version)(int *) = NULL;
    void *version_symbol = dlsym(library, "cuDriverGetVersion");
    if (version_symbol) {
        memcpy(&get_version, &version_symbol, sizeof get_version);
        get_version(&driver.version);
    }
    if (!symbol || driver.version < RFI_DRIVER_NEEDS) {
        snprintf(trouble, sizeof trouble,
                 "the CUDA driver supports CUDA %d.%d; %d.%d (Linux driver 550) or newer is needed",
                 driver.version / 1000, driver.version % 1000 / 10, RFI_DRIVER_NEEDS / 1000,
                 RFI_DRIVER_NEEDS % 1000 / 10);
        return;
    }
    get_proc_fn get_proc;
    memcpy(&get_proc, &symbol, sizeof get_proc);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *at = NULL;
        int status = 0;
        CUresult r = get_proc(entries[i].name, &at, entries[i].version, 0, &status);
        if (r != CUDA_SUCCESS || !at) {
            snprintf(trouble, sizeof trouble,
                     "the CUDA driver (CUDA %d.%d) lacks %s of version %d.%d (result %d)",
                     driver.version / 1000, driver.version % 1000 / 10, entries[i].name,
                     entries[i].version / 1000, entries[i].version % 1000 / 10, r);
            return;
        }
        memcpy((char *)&driver + entries[i].offset, &at, sizeof at);
    }
    CUresult r = driver.cuInit(0);
    if (r != CUDA_SUCCESS) {
        const char *text = NULL;
        driver.cuGetErrorString(r, &text);
        snprintf(trouble, sizeof trouble, "cuInit: %s (%d)", text ? text : "unknown error", r);
    }
}

const rfi_driver *rfi_driver_open(char *why, size_t bytes)
{
    pthread_once(&once, open_driver);
    if (trouble[0]) {
        snprintf(why, bytes, "%s", trouble);
        return NULL;
    }
    return &driver;
}
