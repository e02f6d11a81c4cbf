/* What this machine is, as text for fingerprints: model, cpus, caches, nodes. No serial numbers,
 * addresses or host names. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/codes.h"
#include "cpu/cpu.h"

/* Isa codes of abi.h by the features that kernels of that isa use. */
static uint32_t isa_mask(void)
{
    uint32_t mask = 1u << RFI_ISA_SCALAR;
#if defined(__x86_64__)
    __builtin_cpu_init();    /* checks the operating system's part (XCR0) too */
    unsigned a, b, leaf1, d; /* clang 14 knows no __builtin_cpu_supports("f16c") */
    if (__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &leaf1, &d) && leaf1 & bit_F16C &&
        leaf1 & bit_FMA)
        mask |= 1u << RFI_ISA_AVX2;
    if (mask >> RFI_ISA_AVX2 & 1 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        mask |= 1u << RFI_ISA_AVX512;
#endif
    return mask;
}

static void first_cpus(long n, unsigned char mask[RFI_CPU_MASK])
{
    for (long i = 0; i < n && i < 8 * RFI_CPU_MASK; i++)
        mask[i / 8] |= (unsigned char)(1u << i % 8);
}

static void cpu_mask(unsigned char mask[RFI_CPU_MASK])
{
    memset(mask, 0, RFI_CPU_MASK);
    if (sched_getaffinity(0, RFI_CPU_MASK, (cpu_set_t *)(void *)mask) < 0)
        first_cpus(sysconf(_SC_NPROCESSORS_ONLN), mask); /* more cpus than the mask holds */
}

void rfi_cpu_facts(rfi_capabilities *out)
{
    memset(out, 0, sizeof *out);
    out->isa_mask = isa_mask();
    int best = 31 - __builtin_clz(out->isa_mask);
#if defined(__x86_64__)
    snprintf(out->arch, sizeof out->arch, "x86-64/%s", rfi_isa_text((unsigned)best));
#else
    snprintf(out->arch, sizeof out->arch, "generic/%s", rfi_isa_text((unsigned)best));
#endif
    out->granularity = 4096;
    cpu_mask(out->cpu_mask);
}

/* ---- texts ---- */

/* A value fits one line: printable ASCII, no leading or trailing blanks. */
static void tidy(char *text)
{
    char *to = text;
    for (const char *c = text; *c; c++)
        if (*c > ' ' && *c < 127)
            *to++ = *c;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    if (to > text && to[-1] == ' ')
        to--;
    *to = 0;
}

static const char *read_text(const char *path, char *buf, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(buf, 1, size - 1, f) : 0;
    if (f)
        fclose(f);
    buf[n] = 0;
    tidy(buf);
    return *buf ? buf : "unknown";
}

static void model_name(char *buf, size_t size)
{
    snprintf(buf, size, "unknown");
#if defined(__x86_64__)
    unsigned regs[12], highest = __get_cpuid_max(0x80000000u, NULL);
    if (highest < 0x80000004u || size < sizeof regs + 1)
        return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &regs[4 * i], &regs[4 * i + 1], &regs[4 * i + 2],
                    &regs[4 * i + 3]);
    memcpy(buf, regs, sizeof regs);
    buf[sizeof regs] = 0;
    tidy(buf);
#endif
}

static unsigned count_bits(const unsigned char mask[RFI_CPU_MASK])
{
    unsigned n = 0;
    for (int i = 0; i < RFI_CPU_MASK; i++)
        n += (unsigned)__builtin_popcount(mask[i]);
    return n;
}

/* The cpus of a list like "0-3,8"; of a text that is none, those before what is wrong with it. */
static void read_list(const char *list, unsigned char mask[RFI_CPU_MASK])
{
    memset(mask, 0, RFI_CPU_MASK);
    while (*list) {
        char *end;
        long low = strtol(list, &end, 10), high = low;
        if (end == list)
            return;
        if (*end == '-')
            high = strtol(end + 1, &end, 10);
        for (long i = low; i <= high && i >= 0 && i < 8 * RFI_CPU_MASK; i++)
            mask[i / 8] |= (unsigned char)(1u << i % 8);
        list = *end == ',' ? end + 1 : "";
    }
}

/* All there are, whoever may run on them. */
static void online_mask(unsigned char mask[RFI_CPU_MASK])
{
    char list[1024];
    read_list(read_text("/sys/devices/system/cpu/online", list, sizeof list), mask);
    if (!count_bits(mask))
        first_cpus(sysconf(_SC_NPROCESSORS_ONLN), mask);
}

/* The nodes that have a cpu of the mask. */
static void node_list(const unsigned char mask[RFI_CPU_MASK], char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int node = 0; node < 64 && used < size; node++) {
        char path[64], list[1024];
        unsigned char cpus[RFI_CPU_MASK], meets = 0;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        if (access(path, R_OK))
            continue;
        read_list(read_text(path, list, sizeof list), cpus);
        for (int i = 0; i < RFI_CPU_MASK; i++)
            meets |= cpus[i] & mask[i];
        if (meets)
            used += (size_t)snprintf(buf + used, size - used, "%s%d", used ? "," : "", node);
    }
    if (!used)
        snprintf(buf, size, "unknown");
}

static long cache_kib(int name)
{
    long bytes = sysconf(name);
    return bytes > 0 ? bytes / 1024 : 0;
}

char *rfi_cpu_hw_text(const rfi_capabilities *caps)
{
    char model[64], nodes[128], *text = NULL;
    unsigned char online[RFI_CPU_MASK];
    model_name(model, sizeof model);
    online_mask(online);
    node_list(online, nodes, sizeof nodes);
    int n = asprintf(&text, "cpu=%s\ncpus=%u\nisa=%s\nl2_kib=%ld\nl3_kib=%ld\nnodes=%s\n", model,
                     count_bits(online), strchr(caps->arch, '/') + 1,
                     cache_kib(_SC_LEVEL2_CACHE_SIZE), cache_kib(_SC_LEVEL3_CACHE_SIZE), nodes);
    return n < 0 ? NULL : text;
}

/* Which of the cpus a rank may run on is a matter of how it was started (mpirun binds, taskset),
 * and two ranks bound to one cpu are not two with one each: so what the group has, too. */
char *rfi_cpu_env_text(const rfi_capabilities *caps, uint32_t group_cpus)
{
    char governor[64], pages[64], nodes[128], *text = NULL;
    struct utsname kernel;
    if (uname(&kernel))
        return NULL;
    tidy(kernel.release);
    read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor);
    read_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled", pages, sizeof pages);
    node_list(caps->cpu_mask, nodes, sizeof nodes);
    int n = asprintf(&text,
                     "governor=%s\nkernel=%s\nshmem_huge=%s\nusable_cpus=%u\n"
                     "usable_cpus_of_all=%u\nusable_nodes=%s\n",
                     *governor ? governor : "none", kernel.release, *pages ? pages : "none",
                     count_bits(caps->cpu_mask), group_cpus, nodes);
    return n < 0 ? NULL : text;
}
