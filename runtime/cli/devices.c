#include "cli/devices.h"

#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "cuda/driver.h"

const char *rf_cli_cpu_isa(char *out, size_t size)
{
    rf_config config = RF_CONFIG_INIT;
    rf_error err;
    rfi_device *device;
    rfi_capabilities caps;
    snprintf(out, size, "unknown");
    if (rfi_backend_cpu.open(&config, &device, &err) == RF_OK) {
        rfi_backend_cpu.capabilities(device, &caps);
        rfi_backend_cpu.close(device);
        snprintf(out, size, "%s", strchr(caps.arch, '/') + 1);
    }
    return out;
}

/* "NVIDIA H200 (sm90)" */
static void describe(const rfi_driver *v, int ordinal, char out[192])
{
    char name[128] = "unknown GPU";
    int major = 0, minor = 0;
    v->cuDeviceGetName(name, sizeof name, ordinal);
    v->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal);
    v->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal);
    snprintf(out, 192, "%s (sm%d)", name, 10 * major + minor);
}

int rf_cli_gpus(char *out, size_t size)
{
    const rfi_driver *v = rfi_driver_open(out, size);
    char kind[192], next[192];
    int n = 0;
    if (!v)
        return 0;
    v->cuDeviceGetCount(&n);
    size_t used = 0;
    for (int first = 0, same; first < n && used < size; first += same) {
        describe(v, first, kind);
        for (same = 1; first + same < n; same++) {
            describe(v, first + same, next);
            if (strcmp(kind, next) != 0)
                break;
        }
        used +=
            (size_t)snprintf(out + used, size - used, "%s%d x %s", first ? ", " : "", same, kind);
    }
    if (used < size)
        snprintf(out + used, size - used, "%sdriver for CUDA %d.%d", n ? ", " : "no GPU, ",
                 v->version / 1000, v->version % 1000 / 10);
    return n > 0;
}
