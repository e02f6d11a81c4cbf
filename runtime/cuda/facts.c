/* What the device is, as text for fingerprints. No serial numbers, addresses or host names. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "cuda/cuda.h"

/* First line of a file of the device's folder in sysfs; "unknown" where there is none. */
static const char *pci_fact(const rfi_device *d, const char *name, char *buf, size_t size)
{
    char bus[32] = "", path[128];
    d->driver->cuDeviceGetPCIBusId(bus, sizeof bus, d->ordinal);
    for (char *c = bus; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", bus, name);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(buf, (int)size, f))
        buf[0] = 0;
    if (f)
        fclose(f);
    buf[strcspn(buf, "\n")] = 0;
    return *buf ? buf : "unknown";
}

char *rfi_cuda_hw_text(const rfi_device *d)
{
    char model[128] = "", width[32], speed[64], node[16], *text = NULL;
    size_t bytes = 0;
    d->driver->cuDeviceGetName(model, sizeof model, d->ordinal);
    d->driver->cuDeviceTotalMem(&bytes, d->ordinal);
    int n = asprintf(&text, "gpu=%s\nsms=%u\nmemory_gib=%zu\npcie=%s x%s\nnode=%s\n", model,
                     d->caps.max_grid, (bytes + (1u << 29)) >> 30,
                     pci_fact(d, "max_link_speed", speed, sizeof speed),
                     pci_fact(d, "max_link_width", width, sizeof width),
                     pci_fact(d, "numa_node", node, sizeof node));
    return n < 0 ? NULL : text;
}

char *rfi_cuda_env_text(const rfi_device *d)
{
    char *text = NULL;
    struct utsname kernel;
    if (uname(&kernel))
        return NULL;
    int n = asprintf(&text, "cuda=%d.%d\nkernel=%.60s\n", d->driver->version / 1000,
                     d->driver->version % 1000 / 10, kernel.release);
    return n < 0 ? NULL : text;
}
