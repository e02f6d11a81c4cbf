/* Creation is unanimous: whatever goes wrong on one rank, all get the same verdict with the same
 * words, nothing stays behind, and the next create works. Cases F1 to F4, F10 to F12, F16. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "group.h"

/* One row of trouble: what is done to this rank's config and backend before create, and what
 * everybody has to get. */
typedef struct trouble {
    void (*spoil)(int rank, rf_config *config, rfi_backend *backend);
    rf_result code;
    int culprit;       /* -1 = whichever */
    const char *step;  /* NULL = whichever */
    const char *words; /* part of the text */
} trouble;

typedef struct shared {
    rf_error err[RF_MAX_WORLD];
} shared;

typedef struct attempt {
    const trouble *t;
    shared *all;
    char first[64], second[64];
} attempt;

static void tries(int rank, int world, void *arg)
{
    const attempt *a = arg;
    const trouble *t = a->t;
    int fds = group_fds(), mappings = group_mappings();
    rf_config config = group_config();
    rfi_backend backend = rfi_backend_cpu;
    t->spoil(rank, &config, &backend);
    rf_comm *comm = NULL;
    rf_error *err = &a->all->err[rank];
    rf_result result = group_try(&backend, a->first, &config, rank, world, &comm, err);
    RANK_CHECK(result == t->code, "%d instead of %d: %s", (int)result, (int)t->code, err->text);
    RANK_CHECK(err->code == result, "err.code is %d", (int)err->code);
    RANK_CHECK(!comm, "out was touched");
    RANK_CHECK(t->culprit < 0 || err->rank == t->culprit, "rank %d to blame: %s", err->rank,
               err->text);
    RANK_CHECK(!t->step || !strcmp(err->step, t->step), "step %s: %s", err->step, err->text);
    RANK_CHECK(strstr(err->text, t->words), "no \"%s\" in: %s", t->words, err->text);
    RANK_CHECK(group_fds() == fds, "%d descriptors before, %d after", fds, group_fds());
    RANK_CHECK(group_mappings() == mappings, "mappings are left");
    rank_barrier();
    RANK_CHECK(!strcmp(err->text, a->all->err[0].text), "other words on rank 0: %s | %s", err->text,
               a->all->err[0].text);

    unsetenv("RANKFOLD_DISABLE");
    unsetenv("RANKFOLD_TACTIC");
    config = group_config();
    comm = group_create(a->second, &config, rank, world);
    group_call(comm, 0, NULL, 0, RF_F32, 1000, 1, 0, 0);
    group_close(comm);
}

static void all_get(const trouble *t, int world)
{
    attempt a = {.t = t, .all = ranks_shared(sizeof(shared))};
    snprintf(a.first, sizeof a.first, "%s", group_name());
    snprintf(a.second, sizeof a.second, "%s", group_name());
    RANKS_ASSERT(ranks_run(world, tries, &a, NULL));
    ranks_shared_free(a.all, sizeof(shared));
}

/* ---- a backend that fails (F4, F12) ---- */

static rf_result no_import(rfi_device *device, uint8_t transport, const rfi_memory *theirs,
                           int same_process, rfi_memory *out, rf_error *err)
{
    (void)device, (void)transport, (void)theirs, (void)same_process, (void)out;
    return rfi_fail(err, RF_E_SYSTEM, -1, "map", "injected");
}

static void spoil_import(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config;
    if (rank == 1)
        backend->import = no_import;
}

static void test_import_fails_on_one_rank(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_import, RF_E_SYSTEM, 1, "map", "injected"}, 3);
}

static rf_result no_device(const rf_config *config, rfi_device **out, rf_error *err)
{
    (void)config, (void)out;
    return rfi_fail(err, RF_E_BACKEND, -1, "open", "no such driver (injected)");
}

static void spoil_open(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config;
    if (rank == 2)
        backend->open = no_device;
}

static void test_no_device_on_one_rank(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_open, RF_E_BACKEND, 2, "open", "no such driver"}, 3);
}

static rf_result no_memory(rfi_device *device, uint8_t transport, size_t bytes, rfi_memory *out,
                           rf_error *err)
{
    (void)device, (void)transport, (void)bytes, (void)out;
    return rfi_fail(err, RF_E_MEMORY, -1, "allocate", "injected");
}

static void spoil_memory(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config;
    if (rank == 0)
        backend->allocate = no_memory;
}

static void test_no_memory_on_one_rank(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_memory, RF_E_MEMORY, 0, "allocate", "injected"}, 3);
}

/* ---- stores that do not arrive (F1 to F3) ---- */

static const unsigned char *own_base;
static size_t own_bytes;

static rf_result note_memory(rfi_device *device, uint8_t transport, size_t bytes, rfi_memory *out,
                             rf_error *err)
{
    rf_result result = rfi_backend_cpu.allocate(device, transport, bytes, out, err);
    own_base = out->base;
    own_bytes = out->bytes;
    return result;
}

static int is_own(const unsigned char *at)
{
    return at >= own_base && at < own_base + own_bytes;
}

static rf_result put_dropped(rfi_device *device, unsigned char *at, const void *from, size_t bytes)
{
    return is_own(at) ? rfi_backend_cpu.put(device, at, from, bytes) : RF_OK;
}

static void spoil_stores(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config;
    if (rank != 1)
        return; /* only the direction from rank 1 is broken */
    backend->allocate = note_memory;
    backend->put = put_dropped;
}

static void test_dropped_stores_of_one_direction(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_stores, RF_E_BACKEND, 1, "probe", "stores of rank 1 into rank"}, 3);
}

static rf_result put_corrupted(rfi_device *device, unsigned char *at, const void *from,
                               size_t bytes)
{
    unsigned char wrong[256];
    memcpy(wrong, from, bytes);
    wrong[bytes / 2] ^= 4;
    return rfi_backend_cpu.put(device, at, is_own(at) ? from : wrong, bytes);
}

static void spoil_bits(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config;
    if (rank != 2)
        return;
    backend->allocate = note_memory;
    backend->put = put_corrupted;
}

static void test_one_corrupted_bit(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_bits, RF_E_BACKEND, 2, "probe", "stores of rank 2"}, 3);
}

/* The writer reads its own store back, from a cache of its own; the peer sees zeros. */
static unsigned char cache[4][256];
static const unsigned char *cached_at[4];
static int cached;

static rf_result put_cached(rfi_device *device, unsigned char *at, const void *from, size_t bytes)
{
    if (is_own(at))
        return rfi_backend_cpu.put(device, at, from, bytes);
    memcpy(cache[cached % 4], from, bytes);
    cached_at[cached++ % 4] = at;
    return RF_OK;
}

static rf_result get_cached(rfi_device *device, const unsigned char *at, void *to, size_t bytes)
{
    for (int i = 0; i < 4; i++)
        if (cached_at[i] == at) {
            memcpy(to, cache[i], bytes);
            return RF_OK;
        }
    return rfi_backend_cpu.get(device, at, to, bytes);
}

static void spoil_with_cache(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config;
    if (rank != 0)
        return;
    backend->allocate = note_memory;
    backend->put = put_cached;
    backend->get = get_cached;
}

static void test_stores_that_only_the_writer_sees(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_with_cache, RF_E_BACKEND, 0, "probe", "stores of rank 0"}, 2);
}

/* ---- identity (F10) ---- */

static void give_uuid(const rfi_device *device, rfi_capabilities *out, int id)
{
    rfi_backend_cpu.capabilities(device, out);
    memset(out->uuid, id, sizeof out->uuid);
}

static void uuid_7(const rfi_device *device, rfi_capabilities *out)
{
    give_uuid(device, out, 7);
}

static void uuid_8(const rfi_device *device, rfi_capabilities *out)
{
    give_uuid(device, out, 8);
}

static void spoil_uuid(int rank, rf_config *config, rfi_backend *backend)
{
    config->device = 0; /* all call it 0 */
    backend->capabilities = rank == 1 ? uuid_8 : uuid_7;
}

static void test_one_device_twice_names_both_ranks(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_uuid, RF_E_MISMATCH, 2, "identity", "ranks 0 and 2"}, 3);
}

static void distinct(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rfi_backend backend = rfi_backend_cpu;
    backend.capabilities = rank ? uuid_8 : uuid_7;
    rf_comm *comm;
    rf_error err = {0};
    RANK_CHECK(!group_try(&backend, arg, &config, rank, world, &comm, &err), "%s", err.text);
    group_close(comm);
}

static void spoil_neighbours(int rank, rf_config *config, rfi_backend *backend)
{
    (void)rank, (void)config;
    backend->capabilities = uuid_7;
}

static void test_two_neighbours_on_one_device(void **state)
{
    (void)state;
    all_get(&(trouble){spoil_neighbours, RF_E_MISMATCH, 1, "identity", "ranks 0 and 1"}, 2);
}

/* Ranks 0 and 2 on one device, with room for 90 and 100 blocks; rank 1 on another that can less. */
static void shared_device(const rfi_device *device, rfi_capabilities *out, int id, uint32_t isa,
                          uint32_t grid, unsigned char cpus)
{
    give_uuid(device, out, id);
    out->isa_mask = isa;
    out->max_grid = grid;
    memset(out->cpu_mask, 0, sizeof out->cpu_mask);
    out->cpu_mask[1] = cpus;
    if (id == 8)
        snprintf(out->arch, sizeof out->arch, "less");
}

static void sharer_0(const rfi_device *device, rfi_capabilities *out)
{
    shared_device(device, out, 7, 7, 90, 0x03);
}

static void sharer_1(const rfi_device *device, rfi_capabilities *out)
{
    shared_device(device, out, 8, 1, 60, 0x06);
}

static void sharer_2(const rfi_device *device, rfi_capabilities *out)
{
    shared_device(device, out, 7, 7, 100, 0x80);
}

static void tiny(const rfi_device *device, rfi_capabilities *out)
{
    shared_device(device, out, 7, 1, 2, 1);
}

static uint32_t joined_cpus;

static rf_result note_cpus(rfi_device *device, const rfi_group *group, rf_error *err)
{
    joined_cpus = group->cpus;
    return rfi_backend_cpu.join(device, group, err);
}

static void shares(int rank, int world, void *arg)
{
    const attempt *a = arg;
    rf_config config = group_config();
    rfi_backend backend = rfi_backend_cpu;
    rf_comm *comm;
    rf_error err = {0};
    config.flags = RF_SHARE_DEVICE;
    config.channels = 3;
    backend.capabilities = rank == 0 ? sharer_0 : rank == 1 ? sharer_1 : sharer_2;
    backend.join = note_cpus;
    RANK_CHECK(!group_try(&backend, a->first, &config, rank, world, &comm, &err), "%s", err.text);
    RANK_CHECK(comm->max_grid == 90 / (3 * 2), "%u blocks", comm->max_grid);
    RANK_CHECK(comm->isa_mask == 1 && !strcmp(comm->arch, "less"), "%x %s", comm->isa_mask,
               comm->arch);
    RANK_CHECK(joined_cpus == 4, "%u cpus", joined_cpus);
    group_call(comm, 0, NULL, 0, RF_F32, 1000, 1, 0, 0);
    group_close(comm);
    backend.capabilities = tiny;
    RANK_CHECK(!group_try(&backend, a->second, &config, rank, world, &comm, &err), "%s", err.text);
    RANK_CHECK(comm->max_grid == 1, "%u blocks", comm->max_grid);
    group_close(comm);
}

static void test_what_ranks_share_and_all_can(void **state)
{
    (void)state;
    attempt a;
    snprintf(a.first, sizeof a.first, "%s", group_name());
    snprintf(a.second, sizeof a.second, "%s", group_name());
    RANKS_ASSERT(ranks_run(3, shares, &a, NULL));
}

static void test_every_rank_calls_its_device_0(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, distinct, (void *)group_name(), NULL));
}

/* ---- arguments that differ ---- */

static void spoil_capacity(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    if (rank == 1)
        config->capacity_bytes *= 2;
}

static void spoil_channels(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    config->channels = rank == 2 ? 4 : 3;
}

static void spoil_deadline(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    config->deadline_ms += (uint32_t)rank;
}

static void spoil_flags(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    if (rank == 1)
        config->flags = RF_LOSSY;
}

static void spoil_pack_order(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    static rf_pack smaller;
    static const rf_pack *packs[] = {&smaller};
    smaller = rf_pack_cpu_small;
    smaller.n_shards--;
    if (rank == 1)
        config->packs = packs;
}

static void spoil_kind(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    if (rank == 2)
        config->backend = RF_BACKEND_CUDA;
}

static void spoil_timeout(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    config->create_timeout_ms += (uint32_t)rank;
}

static void spoil_tactic(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config, (void)backend;
    if (rank == 1)
        setenv("RANKFOLD_TACTIC", "*_os_*", 1);
}

static void test_configs_that_differ(void **state)
{
    (void)state;
    static const trouble rows[] = {
        {spoil_capacity, RF_E_MISMATCH, 1, NULL,
         "config.capacity_bytes is 524288 on rank 1, 262144"},
        {spoil_channels, RF_E_MISMATCH, 2, NULL, "config.channels is 4 on rank 2, 3 on rank 0"},
        {spoil_deadline, RF_E_MISMATCH, 1, NULL, "deadline"},
        {spoil_flags, RF_E_MISMATCH, 1, NULL, "config.flags"},
        {spoil_pack_order, RF_E_MISMATCH, 1, NULL, "packs"},
        {spoil_tactic, RF_E_MISMATCH, 1, NULL, "RANKFOLD_TACTIC"},
        {spoil_kind, RF_E_MISMATCH, 2, NULL, "config.backend"},
        {spoil_timeout, RF_E_MISMATCH, 1, NULL, "config.create_timeout_ms"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        all_get(&rows[i], 3);
}

/* ---- arguments that are wrong on one rank, and on all ---- */

static void spoil_disable(int rank, rf_config *config, rfi_backend *backend)
{
    (void)config, (void)backend;
    if (rank == 1)
        setenv("RANKFOLD_DISABLE", "1", 1);
}

static void spoil_backend(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    if (rank == 1)
        config->backend = (rf_backend_kind)9;
}

static void spoil_size(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    if (rank == 0)
        config->struct_size = 4;
}

static void spoil_capacity_huge(int rank, rf_config *config, rfi_backend *backend)
{
    (void)rank, (void)backend;
    config->capacity_bytes = UINT64_MAX;
}

static void spoil_packs(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    if (rank == 2)
        config->n_packs = 0;
}

static void spoil_abi(int rank, rf_config *config, rfi_backend *backend)
{
    (void)backend;
    static rf_pack other;
    static const rf_pack *packs[] = {&other};
    other = rf_pack_cpu_small;
    other.abi = RF_ABI + 1;
    if (rank == 1)
        config->packs = packs;
}

static void test_a_wrong_argument_of_one_rank(void **state)
{
    (void)state;
    static const trouble rows[] = {
        {spoil_disable, RF_E_BACKEND, 1, NULL, "RANKFOLD_DISABLE"},
        {spoil_backend, RF_E_ARG, 1, NULL, "config.backend is 9"},
        {spoil_size, RF_E_ARG, 0, NULL, "config.struct_size is 4"},
        {spoil_capacity_huge, RF_E_ARG, -1, NULL, "config.capacity_bytes"},
        {spoil_packs, RF_E_PACK, 2, NULL, "config.packs is empty"},
        {spoil_abi, RF_E_PACK, 1, NULL, "abi"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        all_get(&rows[i], 3);
}

/* ---- F16: a rank that never arrives; one that dies on the way ---- */

typedef struct absent {
    char first[64], second[64];
} absent;

static void arrives_late(int rank, int world, void *arg)
{
    const absent *a = arg;
    int fds = group_fds(), mappings = group_mappings();
    rf_config config = group_config();
    config.create_timeout_ms = 1500;
    if (rank != 2) {
        rf_comm *comm = NULL;
        rf_error err = {0};
        rf_result result = group_try(&rfi_backend_cpu, a->first, &config, rank, world, &comm, &err);
        RANK_CHECK(result == RF_E_TIMEOUT && !comm, "%d: %s", (int)result, err.text);
        RANK_CHECK((err.rank == 2 && strstr(err.text, "2")), "rank %d: %s", err.rank, err.text);
        RANK_CHECK(group_fds() == fds && group_mappings() == mappings, "left behind");
    }
    rank_barrier();
    config = group_config();
    rf_comm *comm = group_create(a->second, &config, rank, world);
    group_close(comm);
}

static void test_a_rank_that_never_arrives(void **state)
{
    (void)state;
    absent a;
    snprintf(a.first, sizeof a.first, "%s", group_name());
    snprintf(a.second, sizeof a.second, "%s", group_name());
    RANKS_ASSERT(ranks_run(3, arrives_late, &a, NULL));
}

static rf_result die(rfi_device *device, const rfi_group *group, rf_error *err)
{
    (void)device, (void)group, (void)err;
    raise(SIGKILL);
    return RF_OK;
}

static void dies(int rank, int world, void *arg)
{
    const absent *a = arg;
    rf_config config = group_config();
    rfi_backend backend = rfi_backend_cpu;
    if (rank == 1)
        backend.join = die;
    rf_comm *comm = NULL;
    rf_error err = {0};
    rf_result result = group_try(&backend, a->first, &config, rank, world, &comm, &err);
    RANK_CHECK(result == RF_E_PEER && err.rank == 1 && !comm, "%d, rank %d: %s", (int)result,
               err.rank, err.text);
    comm = group_create(a->second, &config, rank - (rank > 1), world - 1);
    group_close(comm);
}

static void test_a_rank_that_dies_during_create(void **state)
{
    (void)state;
    absent a;
    snprintf(a.first, sizeof a.first, "%s", group_name());
    snprintf(a.second, sizeof a.second, "%s", group_name());
    RANKS_ASSERT(ranks_run(3, dies, &a, &(ranks_options){.may_die = 2}));
}

/* ---- F11: every query in a parent, then fork ---- */

static void forked(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    group_call(comm, 0, NULL, 0, RF_F16, 1000, 1, 0, 0);
    group_close(comm);
}

static void test_queries_in_a_parent_that_forks(void **state)
{
    (void)state;
    int fds = group_fds(), mappings = group_mappings();
    rf_config config = group_config();
    rf_footprint all;
    float x = 1;
    const void *in[] = {&x};
    assert_int_equal(rf_version_number(), RF_VERSION_NUMBER);
    assert_non_null(rf_version_string());
    assert_string_equal(rf_strerror(RF_OK), "ok");
    assert_non_null(rf_rung_text(RF_RUNG_EXACT));
    assert_int_equal(rf_dtype_size(RF_F16), 2);
    assert_string_equal(rf_dtype_name(RF_BF16), "bf16");
    assert_int_equal(rf_dtype_parse("f16"), RF_F16);
    assert_int_equal(rf_footprint_query(&config, 2, &all, NULL), RF_OK);
    assert_int_equal(rf_oracle_all_reduce(in, &x, 1, RF_F32, 1), RF_OK);
    assert_int_equal(group_fds(), fds);
    assert_int_equal(group_mappings(), mappings);
    RANKS_ASSERT(ranks_run(3, forked, (void *)group_name(), NULL));
}

/* rf_bootstrap_env gives all comms of a job one name: whoever is done first with one comm must not
 * be taken for a part of it when it comes for the next. */
static void one_name_many_comms(int rank, int world, void *arg)
{
    rf_comm *comms[8];
    rf_config config = group_config();
    for (int i = 0; i < 8; i++)
        comms[i] = group_create(arg, &config, rank, world);
    for (int i = 0; i < 8; i++) {
        group_call(comms[i], 0, NULL, 0, RF_F32, 100, (uint64_t)i, 0, 0);
        group_close(comms[i]);
    }
}

static void test_comms_of_one_name_in_a_row(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, one_name_many_comms, (void *)group_name(), NULL));
}

/* A program that has closed its standard files, and writes to them all the same. */
static void without_standard_files(int rank, int world, void *arg)
{
    rf_config config = group_config();
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        close(fd);
    rf_comm *comm = group_create(arg, &config, rank, world);
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        RANK_CHECK(write(fd, "a message", 9) < 0, "descriptor %d is the comm's", fd);
    group_call(comm, 0, NULL, 0, RF_F32, 1000, 1, 0, 0);
    group_close(comm);
}

static void test_what_a_program_prints_goes_nowhere_else(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, without_standard_files, (void *)group_name(), NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queries_in_a_parent_that_forks),
        cmocka_unit_test(test_import_fails_on_one_rank),
        cmocka_unit_test(test_no_device_on_one_rank),
        cmocka_unit_test(test_no_memory_on_one_rank),
        cmocka_unit_test(test_dropped_stores_of_one_direction),
        cmocka_unit_test(test_one_corrupted_bit),
        cmocka_unit_test(test_stores_that_only_the_writer_sees),
        cmocka_unit_test(test_one_device_twice_names_both_ranks),
        cmocka_unit_test(test_two_neighbours_on_one_device),
        cmocka_unit_test(test_every_rank_calls_its_device_0),
        cmocka_unit_test(test_what_ranks_share_and_all_can),
        cmocka_unit_test(test_configs_that_differ),
        cmocka_unit_test(test_a_wrong_argument_of_one_rank),
        cmocka_unit_test(test_comms_of_one_name_in_a_row),
        cmocka_unit_test(test_what_a_program_prints_goes_nowhere_else),
        cmocka_unit_test(test_a_rank_that_never_arrives),
        cmocka_unit_test(test_a_rank_that_dies_during_create),
    };
    return cmocka_run_group_tests_name("create", tests, NULL, NULL);
}
