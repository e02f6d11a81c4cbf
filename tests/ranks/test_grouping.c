/* Islands over several ranks: one grouping, or one error, on all of them; and tactics that sum in
 * its order run only where the caller admits them. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/codes.h"
#include "group.h"

extern const int rfi_abi_4;

#define WORLD 4

/* ---- topology files ---- */

/* In the parent, before the ranks; number: of several. */
static const char *file_of(int number)
{
    static char path[2][300];
    const char *folder = getenv("TMPDIR");
    snprintf(path[number], sizeof path[number], "%s/islands-%d-%d", folder ? folder : "/tmp",
             (int)getpid(), number);
    return path[number];
}

static void write_file(int number, const char *text)
{
    FILE *f = fopen(file_of(number), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_files(void)
{
    unlink(file_of(0));
    unlink(file_of(1));
}

/* What one rank creates with; file NULL: none. */
typedef struct creation {
    char name[2][64], file[RF_MAX_WORLD][300];
    uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD]; /* of the backend, if not all 0 */
    int regrouped;                                /* by the file */
    rf_result code;
    const char *words; /* of the error; else the islands' text */
    const char *reason;
} creation;

static creation *plan_creation(const char *words)
{
    creation *c = ranks_shared(sizeof *c);
    for (int i = 0; i < 2; i++)
        snprintf(c->name[i], sizeof c->name[i], "%s", group_name());
    c->words = words;
    return c;
}

static const creation *given; /* in a rank */
static int own_rank;

static void capabilities(const rfi_device *device, rfi_capabilities *out)
{
    rfi_backend_cpu.capabilities(device, out);
    if (given->distance[0][1])
        memcpy(out->distance, given->distance[own_rank], sizeof out->distance);
}

static void creates(int rank, int world, void *arg)
{
    const creation *c = arg;
    given = c, own_rank = rank;
    rf_config config = group_config();
    rfi_backend backend = rfi_backend_cpu;
    backend.capabilities = capabilities;
    if (c->file[rank][0])
        setenv("RANKFOLD_TOPOLOGY", c->file[rank], 1);
    rf_comm *comm = NULL;
    rf_error err = {0};
    rf_result result = group_try(&backend, c->name[0], &config, rank, world, &comm, &err);
    RANK_CHECK(result == c->code, "%d: %s", (int)result, err.text);
    if (result) {
        RANK_CHECK(strstr(err.text, c->words), "no \"%s\" in: %s", c->words, err.text);
        return;
    }
    char text[RFI_ISLANDS_TEXT], wanted[64], status[16384];
    rf_islands_info islands;
    RANK_CHECK(rf_islands_query(comm, &islands) == RF_OK, "query");
    rfi_islands_text(&islands, world, text);
    RANK_CHECK(!strcmp(text, c->words), "%s: %s", text, islands.reason);
    RANK_CHECK(!strcmp(islands.reason, c->reason), "%s", islands.reason);
    rf_status_json(comm, status, sizeof status);
    snprintf(wanted, sizeof wanted,
             islands.on ? "\"islands\":{\"ranks\":\"%s\"" : "\"islands\":{\"ranks\":null", text);
    RANK_CHECK(strstr(status, wanted), "no %s in %s", wanted, status);
    RANK_CHECK(strstr(status, c->reason), "%s", status);
    RANK_CHECK(comm->regrouped == c->regrouped, "%d", comm->regrouped);
    /* its kernels do not sum by it: what was measured without it counts */
    RANK_CHECK(!strstr(comm->hw.text, "islands") && !strstr(comm->env.text, "islands"), "%s%s",
               comm->hw.text, comm->env.text);
    for (int i = 0; i < world && islands.on; i++)
        RANK_CHECK(comm->channels[0].params[0].order[i] == islands.order[i], "place %d", i);
    group_call(comm, 0, NULL, 0, RF_BF16, 1000, 1, 0, 0); /* in rank order as before */
    group_close(comm);
}

static void all_create(creation *c)
{
    RANKS_ASSERT(ranks_run(WORLD, creates, c, NULL));
    ranks_shared_free(c, sizeof *c);
    remove_files();
}

static void for_all(creation *c, int number)
{
    for (int r = 0; r < WORLD; r++)
        snprintf(c->file[r], sizeof c->file[r], "%s", file_of(number));
}

static void test_a_file_groups_the_ranks(void **state)
{
    (void)state;
    write_file(0, "0 7\n1 9\n2 7\n3 9\n");
    creation *c = plan_creation("0,2|1,3");
    c->reason = "RANKFOLD_TOPOLOGY", c->regrouped = 1;
    for_all(c, 0);
    all_create(c);
}

static void test_files_that_say_the_same_in_other_words(void **state)
{
    (void)state;
    write_file(0, "0 0\n1 0\n2 1\n3 1\n");
    write_file(1, "# the same\n3 1\n2 1\n1 0\n0 0");
    creation *c = plan_creation("0,1|2,3");
    c->reason = "RANKFOLD_TOPOLOGY", c->regrouped = 1;
    for_all(c, 0);
    snprintf(c->file[2], sizeof c->file[2], "%s", file_of(1));
    all_create(c);
}

static void test_files_that_differ(void **state)
{
    (void)state;
    write_file(0, "0 0\n1 0\n2 1\n3 1\n");
    write_file(1, "0 0\n1 1\n2 0\n3 1\n");
    creation *c = plan_creation("RANKFOLD_TOPOLOGY");
    c->code = RF_E_MISMATCH;
    for_all(c, 0);
    snprintf(c->file[2], sizeof c->file[2], "%s", file_of(1));
    all_create(c);
}

static void test_a_file_on_one_rank_only(void **state)
{
    (void)state;
    write_file(0, "0 0\n1 0\n2 1\n3 1\n");
    creation *c = plan_creation("RANKFOLD_TOPOLOGY");
    c->code = RF_E_MISMATCH;
    snprintf(c->file[3], sizeof c->file[3], "%s", file_of(0));
    all_create(c);
}

static void test_a_bad_file_on_one_rank_is_everybodys_error(void **state)
{
    (void)state;
    write_file(0, "0 0\n1 0\n2 1\n3 1\n");
    write_file(1, "0 0\n1 0\n2 one\n3 1\n");
    creation *c = plan_creation("line 3 is \"2 one\", expected a rank and its island");
    c->code = RF_E_ARG;
    for_all(c, 0);
    snprintf(c->file[1], sizeof c->file[1], "%s", file_of(1));
    all_create(c);
}

static void test_a_file_of_no_two_islands_only_says_so(void **state)
{
    (void)state;
    write_file(0, "0 0\n1 0\n2 0\n3 1\n");
    creation *c = plan_creation("");
    c->reason = "RANKFOLD_TOPOLOGY: expected equal islands, found 3 and 1";
    for_all(c, 0);
    all_create(c);
}

/* 0 and 3 are near each other, and so are 1 and 2. */
static void link_in_pairs(creation *c)
{
    for (int a = 0; a < WORLD; a++)
        for (int b = 0; b < WORLD; b++)
            c->distance[a][b] = (a == 0 || a == 3) == (b == 0 || b == 3) ? 3 : 6;
}

static void test_without_a_file_links_decide(void **state)
{
    (void)state;
    creation *c = plan_creation("");
    c->reason = "all ranks are equally near";
    all_create(c);
    c = plan_creation("0,3|1,2");
    c->reason = "links";
    link_in_pairs(c);
    all_create(c);
}

static void test_a_file_that_says_what_the_links_say(void **state)
{
    (void)state;
    write_file(0, "0 1\n1 0\n2 0\n3 1\n");
    creation *c = plan_creation("0,3|1,2");
    c->reason = "RANKFOLD_TOPOLOGY";
    link_in_pairs(c);
    for_all(c, 0);
    all_create(c);
}

/* ---- opting in ---- */

static rf_cpu_entry honest; /* generic one-shot, f32, world 4 */

#define MOST 4096

/* Brings all tensors to every rank: each is the sum of itself and of negative zeros. */
static void gather(const rf_params *p, float all[WORLD][MOST], const void *in[WORLD])
{
    static const float minus_zero = -0.0f;
    static float zeros[MOST];
    for (uint64_t i = 0; i < p->count; i++)
        zeros[i] = minus_zero;
    for (uint32_t q = 0; q < WORLD; q++) {
        rf_params call = *p;
        call.in = q == p->rank ? p->in : zeros;
        call.out = all[q];
        honest(&call);
        in[q] = all[q];
    }
}

static void kernel_islands(const rf_params *p)
{
    static float all[WORLD][MOST];
    const void *in[WORLD];
    gather(p, all, in);
    rf_oracle_islands(in, p->out, p->count, RF_F32, WORLD, p->order);
}

/* Sums in the order of the ranks, which is not what it is there for. */
static void kernel_other_order(const rf_params *p)
{
    honest(p);
}

static void kernel_plain(const rf_params *p)
{
    usleep(30000); /* so that it wins where it is alone only, on a busy machine too */
    honest(p);
}

#define FAKE(letter, kernel)                                                                       \
    {                                                                                              \
        .hash = {0xFA, letter}, .name = #kernel, .world = WORLD, .unroll = 1,                      \
        .algo = RFI_ALGO_ISLANDS, .flags = RF_VARIANT_REASSOC, .entry = kernel                     \
    }
static const rf_variant fakes[] = {
    FAKE('i', kernel_islands),
    FAKE('o', kernel_other_order),
    {.hash = {0xFA, 'p'},
     .name = "kernel_plain",
     .world = WORLD,
     .unroll = 1,
     .entry = kernel_plain},
};
static const rf_shard fake_shard = {.name = "fake", .world = WORLD, .n = 3, .variants = fakes};
static const rf_shard *const fake_shards[] = {&fake_shard};
static const rf_pack fake_pack = {
    RF_ABI, sizeof(rf_pack), "fake", "cc", &rfi_abi_4, 1, 3, fake_shards,
};

typedef struct opting {
    char name[8][64], file[300], db[300];
} opting;

static const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 1000};

static char said[4 * RF_ERROR_TEXT]; /* by the last comm: warnings */

static void hear(void *ctx, int level, const char *line)
{
    (void)ctx;
    size_t used = strlen(said);
    if (level <= 1)
        snprintf(said + used, sizeof said - used, "%s\n", line);
}

/* The next comm of this rank, and a store on rank 0. */
static rf_comm *open_comm(const opting *o, int *n, uint32_t flags, rf_store **store, int rank)
{
    static const rf_pack *const packs[] = {&fake_pack};
    rf_config config = group_config();
    config.packs = packs, config.n_packs = 1;
    config.flags = flags, config.log = hear;
    said[0] = 0;
    *store = NULL;
    if (rank == 0)
        RANK_CHECK(rf_store_open(o->db, NULL, 0, store, NULL) == RF_OK, "store");
    config.store = *store;
    return group_create(o->name[(*n)++], &config, rank, WORLD);
}

static void close_comm(rf_comm *comm, rf_store *store)
{
    group_close(comm);
    rf_store_close(store);
}

static rf_plan_info plan_of(rf_comm *comm)
{
    rf_plan_info plan;
    rf_error err = {0};
    RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
    rf_plan_query(comm, 0, shape.hidden, shape.dtype, shape.mode, &plan);
    return plan;
}

static void never_without(rf_comm *comm, const char *why)
{
    float x[8] = {0};
    for (size_t i = 0; i < 2; i++) {
        const char *refusal = rfi_refusal(comm, &fakes[i], &shape);
        RANK_CHECK(refusal && strstr(refusal, why), "%s", refusal ? refusal : "admitted");
        RANK_CHECK(rfi_launch(comm, 0, &fakes[i], 1, x, x, 8, RF_F32, NULL) == RF_E_VARIANT,
                   "launched");
    }
    RANK_CHECK(!(rfi_admits(comm) & RF_VARIANT_REASSOC), "admits");
    rf_plan_info plan = plan_of(comm);
    RANK_CHECK(!strcmp(plan.variant, "kernel_plain"), "%s: %s", plan.variant, plan.reason);
    setenv("RANKFOLD_TACTIC", "kernel_[io]*", 1);
    plan = plan_of(comm);
    RANK_CHECK(!strcmp(plan.variant, "kernel_plain"), "%s: %s", plan.variant, plan.reason);
    unsetenv("RANKFOLD_TACTIC");
}

static rf_tune_summary tune(rf_comm *comm)
{
    rf_error err = {0};
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    rf_tune_summary summary = {0};
    options.rounds = 3, options.seed = 1;
    RANK_CHECK(rf_tune(comm, 0, &shape, 1, &options, &summary, &err) == RF_OK, "%s", err.text);
    return summary;
}

static void opts_in(int rank, int world, void *arg)
{
    const opting *o = arg;
    int n = 0;
    rf_store *store;
    rf_error err = {0};
    rf_plan_info plan;
    (void)world;
    /* admitted, but no islands: all ranks are equally near */
    rf_comm *comm = open_comm(o, &n, RF_REASSOC, &store, rank);
    RANK_CHECK(!strcmp(said, "RF_REASSOC admits nothing here: all ranks are equally near\n"), "%s",
               said);
    never_without(comm, "on no two islands");
    tune(comm);
    close_comm(comm, store);
    /* islands, not admitted: what was tuned before counts as before */
    setenv("RANKFOLD_TOPOLOGY", o->file, 1);
    comm = open_comm(o, &n, RF_DEPENDENT, &store, rank);
    RANK_CHECK(strstr(said, "RF_DEPENDENT admits nothing here: the packs have no such kernel"),
               "%s", said);
    never_without(comm, "needs RF_REASSOC");
    plan = plan_of(comm);
    RANK_CHECK(plan.rung == RF_RUNG_EXACT, "%s", plan.reason);
    RANK_CHECK(tune(comm).warm == 1, "tuned again");
    close_comm(comm, store);
    /* both: measured against their own oracle, and chosen */
    comm = open_comm(o, &n, RF_REASSOC, &store, rank);
    RANK_CHECK(!said[0], "%s", said);
    RANK_CHECK(strstr(comm->env.text, "\nislands=0,3|1,2\n"), "%s", comm->env.text);
    plan = plan_of(comm);
    RANK_CHECK(plan.rung == RF_RUNG_PARTIAL && strstr(plan.reason, "in the islands=0,3|1,2 of"),
               "%d: %s", plan.rung, plan.reason);
    rf_tune_summary summary = tune(comm);
    RANK_CHECK(summary.wrong == 1, "%u wrong", summary.wrong);
    plan = plan_of(comm);
    RANK_CHECK(!strcmp(plan.variant, "kernel_islands"), "%s: %s", plan.variant, plan.reason);
    RANK_CHECK(rf_verify(comm, 0, &shape, 5, &err) == RF_OK, "%s", err.text);
    setenv("RANKFOLD_TACTIC", "*other_order", 1);
    plan = plan_of(comm);
    RANK_CHECK(plan.rung == RF_RUNG_FORCED, "%s", plan.reason);
    RANK_CHECK(rf_verify(comm, 0, &shape, 5, &err) == RF_E_WRONG, "%s", err.text);
    unsetenv("RANKFOLD_TACTIC");
    close_comm(comm, store);
    /* the decision is not for who does not admit it, nor in another grouping */
    comm = open_comm(o, &n, 0, &store, rank);
    never_without(comm, "needs RF_REASSOC");
    close_comm(comm, store);
    unsetenv("RANKFOLD_TOPOLOGY");
    comm = open_comm(o, &n, RF_REASSOC, &store, rank);
    never_without(comm, "on no two islands");
    plan = plan_of(comm);
    RANK_CHECK(plan.rung == RF_RUNG_EXACT, "%s", plan.reason);
    close_comm(comm, store);
}

static void test_other_orders_run_where_they_are_admitted_only(void **state)
{
    (void)state;
    opting *o = ranks_shared(sizeof *o);
    write_file(0, "0 0\n1 1\n2 1\n3 0\n");
    for (int i = 0; i < 8; i++)
        snprintf(o->name[i], sizeof o->name[i], "%s", group_name());
    snprintf(o->file, sizeof o->file, "%s", file_of(0));
    snprintf(o->db, sizeof o->db, "%.280s.db", file_of(0));
    honest = group_honest(WORLD);
    assert_non_null(honest);
    RANKS_ASSERT(ranks_run(WORLD, opts_in, o, NULL));
    ranks_shared_free(o, sizeof *o);
    remove_files();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_groups_the_ranks),
        cmocka_unit_test(test_files_that_say_the_same_in_other_words),
        cmocka_unit_test(test_files_that_differ),
        cmocka_unit_test(test_a_file_on_one_rank_only),
        cmocka_unit_test(test_a_bad_file_on_one_rank_is_everybodys_error),
        cmocka_unit_test(test_a_file_of_no_two_islands_only_says_so),
        cmocka_unit_test(test_without_a_file_links_decide),
        cmocka_unit_test(test_a_file_that_says_what_the_links_say),
        cmocka_unit_test(test_other_orders_run_where_they_are_admitted_only),
    };
    return cmocka_run_group_tests_name("grouping", tests, NULL, NULL);
}
