/* What the device is and how it is connected, as text for fingerprints. No serial numbers,
 * addresses or host names. */
#define _GNU_SOURCE
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "core/group.h"
#include "cuda/cuda.h"

/* First line of a file; "unknown" where there is none. */
static const char *line_of(const char *path, char *buf, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f || !fgets(buf, (int)size, f))
        buf[0] = 0;
    if (f)
        fclose(f);
    buf[strcspn(buf, "\n")] = 0;
    return *buf ? buf : "unknown";
}

/* The folder of a bus address in sysfs, or a file in it. */
static void pci_path(const char *bus, const char *name, char *path, size_t size)
{
    snprintf(path, size, "/sys/bus/pci/devices/%.16s/%.40s", bus, name);
    for (char *c = path; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

static const char *pci_fact(const char *bus, const char *name, char *buf, size_t size)
{
    char path[128];
    pci_path(bus, name, path, sizeof path);
    return line_of(path, buf, size);
}

/* Of the link to the host, as sysfs tells it: "32.0 GT/s PCIe", "16", or "unknown". */
typedef struct pcie {
    char speed[64], width[64];
} pcie;

/* The lesser of what the device and the slot can do. */
static void link_fact(const char *bus, const char *name, char *buf, size_t size)
{
    char above[64], path[64];
    snprintf(path, sizeof path, "../%s", name);
    pci_fact(bus, name, buf, size);
    pci_fact(bus, path, above, sizeof above);
    double slot = strtod(above, NULL);
    if (slot > 0 && slot < strtod(buf, NULL))
        snprintf(buf, size, "%s", above);
    if (!*buf)
        snprintf(buf, size, "unknown");
}

static pcie pcie_of(const char *bus)
{
    pcie slot = {"", ""};
    link_fact(bus, "max_link_speed", slot.speed, sizeof slot.speed);
    link_fact(bus, "max_link_width", slot.width, sizeof slot.width);
    return slot;
}

int rfi_cuda_node(const char *bus)
{
    char node[16];
    pci_fact(bus, "numa_node", node, sizeof node);
    return isdigit((unsigned char)*node) ? (int)strtol(node, NULL, 10) : -1;
}

/* ---- links ---- */

/* A lane of n GT/s carries n/8 GB/s, and a little less: better too short a time than too long. */
uint32_t rfi_cuda_link_clocks(const char *speed, const char *width, int khz)
{
    double bytes_per_ms = strtod(speed, NULL) / 8 * strtod(width, NULL) * 1e6;
    double clocks = bytes_per_ms > 0 && khz > 0 ? 1024 / bytes_per_ms * khz : 0;
    return clocks < 1e5 ? (uint32_t)clocks : 0;
}

static uint32_t kib_clocks(const rfi_device *d, const pcie *slot)
{
    int khz = 0;
    d->driver->cuDeviceGetAttribute(&khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, d->ordinal);
    return rfi_cuda_link_clocks(slot->speed, slot->width, khz);
}

const char *rfi_cuda_route(const char *a, const char *b)
{
    int bridges = 0; /* both paths go through: the root complex, then bridges */
    const char *mark = strstr(a, "/pci");
    if (!mark || strncmp(a, b, (size_t)(mark - a) + 4) != 0)
        return NULL;
    for (size_t i = (size_t)(mark - a) + 1; a[i] && a[i] == b[i]; i++)
        bridges += a[i] == '/';
    return bridges == 0 ? NULL : bridges == 1 ? "root" : "switch";
}

/* Nearest first; what comes first is 0, of which nobody knows how far it is. */
typedef enum link { UNKNOWN, SAME, NVLINK, SWITCH, ROOT, NODE, SYSTEM } link;
static const char *const link_text[] = {"unknown", "same", "nvlink", "switch",
                                        "root",    "node", "system"};

/* The best way between two GPUs. Only NVLink does atomics natively; a process that does not see the
 * other device cannot ask. */
static link link_to(const rfi_device *d, const char *other)
{
    const rfi_driver *v = d->driver;
    const char *own = d->place[d->rank];
    CUdevice device;
    int atomics = 0;
    if (!strcmp(own, other))
        return SAME;
    if (!v->cuDeviceGetByPCIBusId(&device, other))
        v->cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                   d->ordinal, device);
    if (atomics)
        return NVLINK;
    char path[2][128], real[2][PATH_MAX];
    pci_path(own, "", path[0], sizeof path[0]);
    pci_path(other, "", path[1], sizeof path[1]);
    if (!realpath(path[0], real[0]) || !realpath(path[1], real[1]))
        return UNKNOWN;
    const char *route = rfi_cuda_route(real[0], real[1]);
    if (route)
        return strcmp(route, link_text[ROOT]) ? SWITCH : ROOT;
    return rfi_cuda_node(own) == rfi_cuda_node(other) ? NODE : SYSTEM;
}

/* Nodes count in the order of the ranks: which of two equal sockets is meant does not matter. */
static int node_index(const rfi_device *d)
{
    int seen[RF_MAX_WORLD], n = 0;
    for (int r = 0; r <= d->rank; r++) {
        int node = rfi_cuda_node(d->place[r]), i = 0;
        while (i < n && seen[i] != node)
            i++;
        if (i == n)
            seen[n++] = node;
        if (r == d->rank)
            return i;
    }
    return 0;
}

/* ---- texts ---- */

typedef struct card {
    char model[128];
    size_t bytes;
} card;

static char *hw_text(const rfi_device *d, const card *c, const pcie *slot)
{
    char links[RF_MAX_WORLD * 16] = "", *text = NULL;
    size_t used = 0;
    for (int r = 0; r < d->world; r++)
        used += (size_t)snprintf(links + used, sizeof links - used, "%s%s", r ? "," : "",
                                 r == d->rank ? "-" : link_text[d->caps.distance[r]]);
    int n = asprintf(&text, "gpu=%s\nsms=%u\nmemory_gib=%zu\npcie=%s x%s\nnode=%d\nlinks=%s\n",
                     c->model, d->caps.max_grid, (c->bytes + (1u << 29)) >> 30, slot->speed,
                     slot->width, node_index(d), links);
    return n < 0 ? NULL : text;
}

static char *env_text(const rfi_device *d)
{
    char *text = NULL, driver[64];
    struct utsname kernel;
    if (uname(&kernel))
        return NULL;
    int n = asprintf(&text, "cuda=%d.%d\ndriver=%s\nkernel=%.60s\n", d->driver->version / 1000,
                     d->driver->version % 1000 / 10,
                     line_of("/sys/module/nvidia/version", driver, sizeof driver), kernel.release);
    return n < 0 ? NULL : text;
}

rf_result rfi_cuda_describe(rfi_device *d, rf_error *err)
{
    const pcie slot = pcie_of(d->caps.place);
    card c = {.model = ""};
    CUresult bad = d->driver->cuDeviceGetName(c.model, sizeof c.model, d->ordinal);
    if (!bad)
        bad = d->driver->cuDeviceTotalMem(&c.bytes, d->ordinal);
    if (bad) /* by another text nothing measured would be found, and all that is would be lost */
        return rfi_cuda_fail(d, err, "identity", "its name and memory", bad);
    for (int r = 0; r < d->world; r++)
        d->caps.distance[r] = (uint8_t)link_to(d, d->place[r]);
    d->caps.hw_text = d->hw_text = hw_text(d, &c, &slot);
    d->caps.env_text = d->env_text = env_text(d);
    d->kib_clocks = kib_clocks(d, &slot);
    return d->hw_text && d->env_text ? RF_OK
                                     : rfi_fail(err, RF_E_MEMORY, d->rank, "identity", "no memory");
}
