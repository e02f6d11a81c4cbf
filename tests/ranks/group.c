#define _GNU_SOURCE
#include "group.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/codes.h"
#include "core/group.h"

const char *group_name(void)
{
    static char name[64];
    static int runs;
    snprintf(name, sizeof name, "rankfold-test-%d-%d", (int)getpid(), ++runs);
    return name;
}

rf_config group_config(void)
{
    static const rf_pack *const packs[] = {&rf_pack_cpu_small};
    rf_config c = RF_CONFIG_INIT;
    c.packs = packs, c.n_packs = 1;
    c.capacity_bytes = 256 << 10;
    c.deadline_ms = 20000;
    c.create_timeout_ms = 20000;
    return c;
}

rf_cpu_entry group_honest(uint32_t world)
{
    rf_cpu_entry found = NULL;
    for (uint32_t s = 0; s < rf_pack_cpu_small.n_shards; s++)
        for (uint32_t i = 0; i < rf_pack_cpu_small.shards[s]->n; i++) {
            const rf_variant *v = &rf_pack_cpu_small.shards[s]->variants[i];
            if (v->world == world && v->dtype == RF_F32 && v->hidden == 0 &&
                v->isa == RFI_ISA_SCALAR && v->algo == RFI_ALGO_ONE_SHOT)
                found = v->entry;
        }
    return found;
}

rf_result group_try(const rfi_backend *backend, const char *name, const rf_config *config, int rank,
                    int world, rf_comm **out, rf_error *err)
{
    rf_bootstrap boot;
    RANK_CHECK(rf_bootstrap_socket(name, rank, world, &boot, err) == RF_OK, "%s", err->text);
    rf_result result = rfi_comm_create_on(backend, config, &boot, out, err);
    rf_bootstrap_free(&boot);
    return result;
}

rf_comm *group_create(const char *name, const rf_config *config, int rank, int world)
{
    rf_comm *comm = NULL;
    rf_error err = {0};
    rf_result result = group_try(&rfi_backend_cpu, name, config, rank, world, &comm, &err);
    RANK_CHECK(result == RF_OK, "create: %d, %s: %s", (int)result, err.step, err.text);
    return comm;
}

void group_close(rf_comm *comm)
{
    rf_error err = {0};
    RANK_CHECK(rf_comm_close(comm, 20000, &err) == RF_OK, "close: %s", err.text);
    rf_comm_destroy(comm);
}

/* ---- data ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static const uint32_t special_f32[] = {0x80000000, 0,          0x7fc00000, 0xffffffff,
                                       0x7f800000, 0xff800000, 1,          0x807fffff,
                                       0x7f7fffff, 0x3f800000, 0xbf800000, 0x7f800001};
static const uint32_t special_bf16[] = {0x8000, 0,      0x7fc0, 0xffff, 0x7f80, 0xff80,
                                        1,      0x807f, 0x7f7f, 0x3f80, 0xbf80, 0x7f81};
static const uint32_t special_f16[] = {0x8000, 0,      0x7e00, 0xffff, 0x7c00, 0xfc00,
                                       1,      0x83ff, 0x7bff, 0x3c00, 0xbc00, 0x7c01};
static const uint32_t *const special[] = {special_f32, special_bf16, special_f16};
#define N_SPECIAL (sizeof special_f32 / sizeof *special_f32)

uint32_t group_element(rf_dtype dtype, uint64_t seed, int rank, uint64_t i)
{
    static const uint32_t keep[] = {0x80ffffff, 0x83ff, 0x8fff};
    static const uint32_t set[] = {0x3f000000, 0x3c00, 0x3000};
    uint64_t x = mix(seed * 1000003 + (uint64_t)rank * 7919 + i * 0x9e3779b97f4a7c15u);
    uint32_t any = (uint32_t)(x >> 32);
    switch (x & 3) {
    case 0:
        return special[dtype][any % N_SPECIAL];
    case 1:
        return dtype == RF_F32 ? any : any & 0xffff;
    default:
        return (any & keep[dtype]) | set[dtype];
    }
}

void group_fill(void *to, rf_dtype dtype, uint64_t seed, int rank, uint64_t count)
{
    size_t size = rf_dtype_size(dtype);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t e = group_element(dtype, seed, rank, i);
        memcpy((unsigned char *)to + i * size, &e, size); /* little endian */
    }
}

void group_expect(void *to, rf_dtype dtype, uint64_t seed, int world, uint64_t count)
{
    void *in[RF_MAX_WORLD] = {0};
    for (int r = 0; r < world; r++) {
        in[r] = malloc(count * 4 + 1);
        group_fill(in[r], dtype, seed, r, count);
    }
    rf_result result = rf_oracle_all_reduce((const void *const *)in, to, count, dtype, world);
    for (int r = 0; r < world; r++)
        free(in[r]);
    RANK_CHECK(result == RF_OK, "oracle: %d", (int)result);
}

/* ---- calls ---- */

#define GUARD 64

/* `bytes` at `shift` elements off a line, between guards. */
typedef struct tensor {
    unsigned char *base, *at;
    size_t bytes;
} tensor;

static tensor tensor_open(size_t bytes, size_t shift)
{
    tensor t = {.bytes = bytes};
    t.base = aligned_alloc(64, (bytes + shift + 2 * GUARD + 63) / 64 * 64);
    memset(t.base, 0xa5, (bytes + shift + 2 * GUARD + 63) / 64 * 64);
    t.at = t.base + GUARD + shift;
    return t;
}

static int tensor_guarded(const tensor *t)
{
    for (const unsigned char *b = t->base; b < t->at; b++)
        if (*b != 0xa5)
            return 0;
    for (int i = 0; i < GUARD; i++)
        if (t->at[t->bytes + (size_t)i] != 0xa5)
            return 0;
    return 1;
}

void group_call(rf_comm *comm, int channel, const rf_variant *variant, uint32_t grid,
                rf_dtype dtype, uint64_t count, uint64_t seed, int shift, int in_place)
{
    size_t size = rf_dtype_size(dtype), bytes = count * size;
    int rank = rf_comm_rank(comm), world = rf_comm_world(comm);
    tensor in = tensor_open(bytes, (size_t)shift * size),
           other = tensor_open(bytes, (size_t)shift * size);
    tensor *out = in_place ? &in : &other;
    unsigned char *want = malloc(bytes + 1);
    group_expect(want, dtype, seed, world, count);
    group_fill(in.at, dtype, seed, rank, count);
    rf_result result =
        variant ? rfi_launch(comm, channel, variant, grid, in.at, out->at, count, dtype, NULL)
                : rf_all_reduce(comm, channel, in.at, out->at, count, dtype, NULL);
    RANK_CHECK(result == RF_OK, "%s, %llu of %s: %s", variant ? variant->name : "plan",
               (unsigned long long)count, rf_dtype_name(dtype), rf_comm_error(comm)->text);
    for (size_t i = 0; i < bytes; i += size)
        RANK_CHECK(!memcmp(out->at + i, want + i, size),
                   "%s, grid %u: element %zu of %llu %s, shift %d, in place %d, seed %llu: not the "
                   "oracle's bits",
                   variant ? variant->name : "plan", grid, i / size, (unsigned long long)count,
                   rf_dtype_name(dtype), shift, in_place, (unsigned long long)seed);
    RANK_CHECK(tensor_guarded(&in) && tensor_guarded(out), "%s wrote outside of its tensor",
               variant ? variant->name : "plan");
    free(in.base);
    free(other.base);
    free(want);
}

/* ---- what is left behind ---- */

int group_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -1; /* the directory's own */
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int lines_with(const char *path, const char *word)
{
    char line[4096];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, word) != NULL;
    if (f)
        fclose(f);
    return n;
}

int group_mappings(void)
{
    return lines_with("/proc/self/maps", "memfd:");
}

const char *group_no_warning(const rf_store *s)
{
    (void)s;
    return NULL;
}

uint64_t group_one_generation(rf_store *s)
{
    (void)s;
    return 1;
}
