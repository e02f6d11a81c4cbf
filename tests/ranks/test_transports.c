/* A comm that may meet in two kinds of memory: it holds those that work on every rank, alike on
 * all, with the same reason for the other; F1 to F4. The second kind is made of the cpu backend
 * too. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/codes.h"
#include "group.h"

#define FIRST  RFI_TRANSPORT_PEER
#define SECOND RFI_TRANSPORT_CPU

/* ---- packs whose kernels meet in the first kind; made once ---- */

static const rf_pack *like_cpu_small(rf_pack *pack, const uint8_t *isa)
{
    if (pack->shards)
        return pack;
    const rf_pack *cpu = &rf_pack_cpu_small;
    const rf_shard **shards = calloc(cpu->n_shards, sizeof *shards);
    for (uint32_t s = 0; s < cpu->n_shards; s++) {
        rf_shard *shard = malloc(sizeof *shard);
        rf_variant *variants = calloc(cpu->shards[s]->n, sizeof *variants);
        for (uint32_t i = 0; i < cpu->shards[s]->n; i++) {
            char *name = NULL;
            variants[i] = cpu->shards[s]->variants[i];
            RANK_CHECK(asprintf(&name, "%s_twin", variants[i].name) > 0, "no memory");
            variants[i].name = name;
            variants[i].transport = FIRST;
            variants[i].isa = isa ? *isa : variants[i].isa;
            variants[i].threads = 192; /* the least of a ring */
            variants[i].hash[15] ^= 1;
        }
        *shard = *cpu->shards[s];
        shard->variants = variants;
        shards[s] = shard;
    }
    *pack = *cpu;
    pack->shards = shards;
    return pack;
}

static const rf_pack *twin(void)
{
    static rf_pack pack;
    return like_cpu_small(&pack, NULL);
}

/* For other processors than those here. */
static const rf_pack *foreign(void)
{
    static rf_pack pack;
    return like_cpu_small(&pack, &(uint8_t){RFI_ISA_SM120});
}

/* ---- faults ---- */

typedef enum where { NOWHERE, PERMIT, ALLOCATE, IMPORT, STORE } where;

static struct {
    where first, second; /* what fails on this rank */
    const unsigned char *peer[RF_MAX_WORLD];
    size_t n_peers, bytes;
} faults;

static int fails(where w, uint8_t transport)
{
    return (transport == FIRST ? faults.first : faults.second) == w;
}

static rf_result inject(uint8_t transport, const char *step, rf_error *err)
{
    return rfi_fail(err, RF_E_BACKEND, -1, step, "%s of %s (injected)", step,
                    transport == FIRST ? "the first" : "the second");
}

static rf_result may(rfi_device *device, uint8_t transport, rf_error *err)
{
    return fails(PERMIT, transport) ? inject(transport, "permit", err)
                                    : rfi_backend_cpu.permit(device, transport, err);
}

static rf_result allocate(rfi_device *device, uint8_t transport, size_t bytes, rfi_memory *out,
                          rf_error *err)
{
    return fails(ALLOCATE, transport)
               ? inject(transport, "allocate", err)
               : rfi_backend_cpu.allocate(device, transport, bytes, out, err);
}

static rf_result import(rfi_device *device, uint8_t transport, const rfi_memory *theirs,
                        int same_process, rfi_memory *out, rf_error *err)
{
    if (fails(IMPORT, transport))
        return inject(transport, "map", err);
    rf_result bad = rfi_backend_cpu.import(device, transport, theirs, same_process, out, err);
    if (fails(STORE, transport)) {
        faults.peer[faults.n_peers++] = out->base;
        faults.bytes = out->bytes;
    } else {
        faults.n_peers = 0; /* the others are gone: their addresses are free again */
    }
    return bad;
}

static rf_result put(rfi_device *device, unsigned char *at, const void *from, size_t bytes)
{
    for (size_t i = 0; i < faults.n_peers; i++)
        if (at >= faults.peer[i] && at < faults.peer[i] + faults.bytes)
            return RF_OK; /* dropped */
    return rfi_backend_cpu.put(device, at, from, bytes);
}

#define FIRST_MOST 65536u /* bytes that kernels of the first kind can do */

static const char *too_many(const rf_variant *v, uint64_t slot_bytes, uint64_t bytes)
{
    return v->transport == FIRST && bytes > FIRST_MOST
               ? "too many bytes"
               : rfi_backend_cpu.misfit(v, slot_bytes, bytes);
}

static const rfi_backend *two_kinds(void)
{
    static rfi_backend b;
    b = rfi_backend_cpu;
    b.transports[0] = FIRST, b.transports[1] = SECOND, b.n_transports = 2;
    b.permit = may, b.allocate = allocate, b.import = import, b.put = put, b.misfit = too_many;
    return &b;
}

/* ---- tests ---- */

typedef struct attempt {
    const char *name;
    where first, second;
    int culprit;       /* where they fail; the others are sound */
    const char *words; /* of the reason, NULL = both kinds work */
    char (*status)[8192];
} attempt;

static rf_comm *try_both(const attempt *a, int rank, int world, rf_result wanted, rf_error *err)
{
    memset(&faults, 0, sizeof faults);
    if (rank == a->culprit)
        faults.first = a->first, faults.second = a->second;
    const rf_pack *const packs[] = {twin(), &rf_pack_cpu_small};
    rf_config config = group_config();
    config.packs = packs, config.n_packs = 2;
    rf_comm *comm = NULL;
    rf_result result = group_try(two_kinds(), a->name, &config, rank, world, &comm, err);
    RANK_CHECK(result == wanted, "%d: %s", (int)result, err->text);
    return comm;
}

/* Every rank says the same about its transports. */
static void compare_status(const attempt *a, const rf_comm *comm, int rank)
{
    char *mine = a->status[rank];
    char *line = malloc(65536);
    rf_status_json(comm, line, 65536);
    const char *from = strstr(line, "\"transports\""), *to = strstr(line, "\"health\"");
    RANK_CHECK(from && to && to - from < 8192, "no transports in %s", line);
    snprintf(mine, 8192, "%.*s", (int)(to - from), from);
    free(line);
    rank_barrier();
    RANK_CHECK(!strcmp(mine, a->status[0]), "%s | %s", mine, a->status[0]);
    RANK_CHECK(!a->words || strstr(mine, a->words), "no \"%s\" in %s", a->words, mine);
}

static void check_query(const rf_comm *comm, const char *words)
{
    rf_transport_info t[2];
    RANK_CHECK(!rf_transport_query(comm, 0, &t[0]) && !strcmp(t[0].name, "peer"), "not peer");
    RANK_CHECK(!rf_transport_query(comm, 1, &t[1]) && !strcmp(t[1].name, "cpu"), "not cpu");
    RANK_CHECK(t[0].on == !words && t[1].on && !t[1].reason[0], "%s | %s", t[0].reason,
               t[1].reason);
    RANK_CHECK(words ? !!strstr(t[0].reason, words) : !t[0].reason[0], "%s", t[0].reason);
    RANK_CHECK(rf_transport_query(comm, 2, &t[0]) == RF_E_ARG, "a third one");
}

static void check_plan(const rf_comm *comm, const char *words)
{
    rf_plan_info info;
    RANK_CHECK(!rf_plan_query(comm, 0, 1000, RF_F32, RF_EAGER, &info), "no plan");
    RANK_CHECK(!strstr(info.variant, "_twin") == (words != NULL), "%s", info.variant);
    RANK_CHECK(!words || (strstr(info.reason, "peer is off") && strstr(info.reason, words)), "%s",
               info.reason);
}

/* Kernels have met in memory of this kind. */
static void check_steps(const rf_comm *comm, int transport, int rank)
{
    const rf_params *p = &comm->channels[0].params[transport];
    RANK_CHECK(((const rf_region *)(const void *)p->peer[rank])->control.epoch > 0,
               "no step on transport %d", transport);
}

static void one_is_left(int rank, int world, void *arg)
{
    const attempt *a = arg;
    rf_error err = {0};
    int fds = group_fds(), mappings = group_mappings();
    rf_comm *comm = try_both(a, rank, world, RF_OK, &err);
    compare_status(a, comm, rank);
    check_plan(comm, a->words);
    check_query(comm, a->words);
    RANK_CHECK(strstr(comm->env.text, a->words ? "\ntransports=cpu\n" : "\ntransports=peer,cpu\n"),
               "%s", comm->env.text);
    const rf_shape shape = {.dtype = RF_F32, .rows = 1, .hidden = 1000};
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        if (v->dtype != RF_F32 || v->hidden || v->isa != RFI_ISA_SCALAR)
            continue;
        const char *refusal = rfi_refusal(comm, v, &shape);
        int off = a->words && v->transport == FIRST;
        RANK_CHECK(!refusal == !off, "%s: %s", v->name, refusal ? refusal : "may run");
        if (!refusal)
            group_call(comm, 0, v, 64, RF_F32, 1000, i, 0, 0);
    }
    check_steps(comm, a->words ? SECOND : FIRST, rank);
    check_steps(comm, SECOND, rank);
    for (uint64_t i = 0; i < 4; i++)
        group_call(comm, 0, NULL, 0, RF_BF16, 3001, i, 1, (int)i % 2);
    group_close(comm);
    RANK_CHECK(group_fds() == fds && group_mappings() == mappings, "left behind");
}

static void none_is_left(int rank, int world, void *arg)
{
    attempt a = *(const attempt *)arg;
    rf_error err = {0};
    int fds = group_fds(), mappings = group_mappings();
    RANK_CHECK(!try_both(&a, rank, world, RF_E_BACKEND, &err), "out was touched");
    RANK_CHECK(err.rank == a.culprit && strstr(err.text, "the first (injected)") &&
                   strstr(err.text, "the second (injected)"),
               "rank %d: %s", err.rank, err.text);
    RANK_CHECK(group_fds() == fds && group_mappings() == mappings, "left behind");
    snprintf(a.status[rank], sizeof a.status[rank], "%s", err.text);
    rank_barrier();
    RANK_CHECK(!strcmp(a.status[rank], a.status[0]), "%s | %s", err.text, a.status[0]);
    a.culprit = -1; /* and the next create works */
    rf_comm *comm = try_both(&a, rank, world, RF_OK, &err);
    group_call(comm, 0, NULL, 0, RF_F16, 1000, 1, 0, 0);
    group_close(comm);
}

static void run(rank_fn fn, attempt a)
{
    a.name = group_name();
    a.status = ranks_shared(RF_MAX_WORLD * sizeof *a.status);
    RANKS_ASSERT(ranks_run(3, fn, &a, NULL));
    ranks_shared_free(a.status, RF_MAX_WORLD * sizeof *a.status);
}

static void test_both_work(void **state)
{
    (void)state;
    run(one_is_left, (attempt){.culprit = -1});
}

static void test_what_fails_on_one_rank_is_off_on_all(void **state)
{
    (void)state;
    static const attempt rows[] = {
        {.first = PERMIT, .culprit = 2, .words = "rank 2: permit of the first"},
        {.first = ALLOCATE, .culprit = 1, .words = "rank 1: allocate of the first"},
        {.first = IMPORT, .culprit = 0, .words = "rank 0: memory of rank 1: map of the first"},
        {.first = STORE, .culprit = 1, .words = "stores of rank 1 into rank 0's memory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        run(one_is_left, rows[i]);
}

static void test_none_left_is_an_error_with_both_reasons(void **state)
{
    (void)state;
    run(none_is_left, (attempt){.first = IMPORT, .second = ALLOCATE, .culprit = 1});
    run(none_is_left, (attempt){.first = ALLOCATE, .second = PERMIT, .culprit = 2});
}

/* What is prepared on the first kind is not taken for calls that are too large for it. */
static void large_calls(int rank, int world, void *arg)
{
    const attempt *a = arg;
    const uint64_t large = FIRST_MOST / 4 + 1;
    rf_error err = {0};
    rf_plan_info info;
    rf_comm *comm = try_both(a, rank, world, RF_OK, &err);
    rf_shape shape = {.dtype = RF_F32, .rows = 1, .hidden = large - 1};
    RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
    check_plan(comm, NULL);
    RANK_CHECK(!rf_plan_query(comm, 0, large, RF_F32, RF_EAGER, &info), "no plan");
    RANK_CHECK(!strstr(info.variant, "_twin"), "%s", info.variant);
    group_call(comm, 0, NULL, 0, RF_F32, large, 1, 0, 0);
    shape.hidden = large;
    RANK_CHECK(rf_supports(comm, &shape), "not supported");
    group_close(comm);
}

/* A grid of blocks was measured with 8 KiB, which are four turns of 128 threads: the number of
 * rows. */
static int lookup_8_kib(rf_store *s, const rfi_key *key, rfi_have_fn have, void *ctx,
                        rfi_decision *out)
{
    (void)s, (void)have, (void)ctx;
    *out = (rfi_decision){.rung = RF_RUNG_NEAREST,
                          .bucket = 8192,
                          .grid = (uint32_t)key->rows,
                          .variant = "ar_w3_f32_h0_os_cpu_flag_scalar_u1_ca_twin",
                          .median_ns = 1000};
    return 1;
}

static void other_sizes(int rank, int world, void *arg)
{
    static const rfi_store_vtable v = {
        .lookup = lookup_8_kib, .warning = group_no_warning, .generation = group_one_generation};
    static rf_store store = {&v};
    static const struct {
        uint64_t rows, bytes;
        uint32_t grid;
    } asked[] = {{4, 8192, 4}, {4, 6144, 4}, {4, 4096, 2}, {4, 12288, 6}, {1, 12292, 2}};
    rf_error err = {0};
    rf_plan_info info;
    rf_comm *comm = try_both(arg, rank, world, RF_OK, &err);
    comm->config.store = rank ? NULL : &store;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        rf_shape shape = {.dtype = RF_F32, .rows = asked[i].rows};
        shape.hidden = asked[i].bytes / 4 / asked[i].rows;
        RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
        RANK_CHECK(!rf_plan_query(comm, 0, asked[i].bytes / 4, RF_F32, RF_EAGER, &info), "query");
        RANK_CHECK(strstr(info.variant, "_twin") && info.grid == asked[i].grid,
                   "%llu bytes: %s, grid %u", (unsigned long long)asked[i].bytes, info.variant,
                   info.grid);
    }
    comm->config.store = NULL;
    group_close(comm);
}

static void test_grids_grow_with_the_size(void **state)
{
    (void)state;
    run(other_sizes, (attempt){.culprit = -1});
}

static void test_what_is_too_large_for_one_kind_takes_the_other(void **state)
{
    (void)state;
    run(large_calls, (attempt){.culprit = -1});
}

/* One pack has no kernels for the first kind: nothing is allocated for it. */
static void without_kernels(int rank, int world, void *arg)
{
    memset(&faults, 0, sizeof faults);
    faults.first = ALLOCATE;
    rf_config config = group_config();
    rf_comm *comm = NULL;
    rf_error err = {0};
    rf_result result = group_try(two_kinds(), arg, &config, rank, world, &comm, &err);
    RANK_CHECK(result == RF_OK, "%d: %s", (int)result, err.text);
    RANK_CHECK(!comm->transport[FIRST].on && comm->transport[FIRST].why.code == RF_E_VARIANT, "%s",
               comm->transport[FIRST].why.text);
    group_call(comm, 0, NULL, 0, RF_F32, 1000, 1, 0, 0);
    group_close(comm);
}

static void test_a_kind_without_kernels_costs_nothing(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, without_kernels, (void *)group_name(), NULL));
}

/* What was found and what runs here are named: of one kind, and where nothing else is left. */
static void for_others(int rank, int world, void *arg)
{
    memset(&faults, 0, sizeof faults);
    const rf_pack *const packs[] = {foreign(), &rf_pack_cpu_small};
    rf_config config = group_config();
    config.packs = packs, config.n_packs = 2;
    rf_comm *comm = NULL;
    rf_error err = {0};
    rf_result result = group_try(two_kinds(), arg, &config, rank, world, &comm, &err);
    RANK_CHECK(result == RF_OK, "%d: %s", (int)result, err.text);
    const char *why = comm->transport[FIRST].why.text;
    RANK_CHECK(!comm->transport[FIRST].on && strstr(why, comm->arch) && strstr(why, "need sm120"),
               "%s", why);
    group_close(comm);

    config.n_packs = 1;
    result = group_try(two_kinds(), arg, &config, rank, world, &comm, &err);
    RANK_CHECK(result == RF_E_VARIANT && strstr(err.text, "need sm120"), "%d: %s", (int)result,
               err.text);
}

static void test_a_pack_for_other_processors_is_said_to_be_one(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, for_others, (void *)group_name(), NULL));
}

/* Both hold the channel, so that both are poisoned by an abort and revived by a reset. */
static void aborts(int rank, int world, void *arg)
{
    const attempt *a = arg;
    rf_error err = {0};
    rf_comm *comm = try_both(a, rank, world, RF_OK, &err);
    if (rank == 1)
        rf_comm_abort(comm);
    rank_barrier();
    for (int t = FIRST, i = 0; i < 2; i++, t = SECOND) {
        uint32_t poison;
        rf_fault fault;
        comm->backend->read_fault(comm->device, &comm->channels[0].params[t], &poison, &fault);
        RANK_CHECK(poison == RF_POISON(1, RF_FAULT_ABORT), "transport %d: poison %x", t, poison);
    }
    rf_health health;
    rf_comm_check(comm, &health);
    RANK_CHECK(health.code == RF_E_ABORTED && health.culprit == 1, "%d", (int)health.code);
    rank_barrier();
    RANK_CHECK(rf_comm_reset(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_check(comm, &health);
    RANK_CHECK(health.code == RF_OK, "%d", (int)health.code);
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        if (v->dtype == RF_F32 && !v->hidden && v->isa == RFI_ISA_SCALAR)
            group_call(comm, 0, v, 64, RF_F32, 1000, i, 0, 0);
    }
    group_close(comm);
}

static void test_abort_and_reset_reach_both(void **state)
{
    (void)state;
    run(aborts, (attempt){.culprit = -1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_work),
        cmocka_unit_test(test_what_fails_on_one_rank_is_off_on_all),
        cmocka_unit_test(test_none_left_is_an_error_with_both_reasons),
        cmocka_unit_test(test_what_is_too_large_for_one_kind_takes_the_other),
        cmocka_unit_test(test_grids_grow_with_the_size),
        cmocka_unit_test(test_a_kind_without_kernels_costs_nothing),
        cmocka_unit_test(test_a_pack_for_other_processors_is_said_to_be_one),
        cmocka_unit_test(test_abort_and_reset_reach_both),
    };
    return cmocka_run_group_tests_name("transports", tests, NULL, NULL);
}
