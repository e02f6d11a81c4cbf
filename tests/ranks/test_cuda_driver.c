/* Every call of the CUDA driver fails once, on one rank of two: all ranks come to the same verdict,
 * nothing is left behind, and the next comm works. Over a driver of our own, on host memory. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/codes.h"
#include "fake_driver.h"
#include "group.h"

extern const int rfi_abi_4;

#define KERNEL(number, text, algorithm, memory, code)                                              \
    {                                                                                              \
        .hash = {0xCD, number}, .name = text, .world = 2, .algo = algorithm, .transport = memory,  \
        .wire = code, .isa = RFI_ISA_SM90, .threads = 128, .unroll = 1                             \
    }
static const rf_variant variants[] = {
    KERNEL(1, "os_peer", RFI_ALGO_ONE_SHOT, RFI_TRANSPORT_PEER, RFI_WIRE_NAN),
    KERNEL(2, "ts_peer", RFI_ALGO_TWO_SHOT, RFI_TRANSPORT_PEER, RFI_WIRE_NAN),
    KERNEL(3, "os_host", RFI_ALGO_ONE_SHOT, RFI_TRANSPORT_HOST, RFI_WIRE_TAG),
};
#define N_VARIANTS (sizeof variants / sizeof *variants)
static const rf_shard shard = {
    .name = "gpu", .world = 2, .n = N_VARIANTS, .variants = variants, .image = "an image"};
static const rf_shard *const shards[] = {&shard};
static const rf_pack pack = {
    RF_ABI, sizeof(rf_pack), "gpu", "nvcc", &rfi_abi_4, 1, N_VARIANTS, shards,
};

/* What a rank came to with one failure. */
typedef struct outcome {
    rf_result result;
    int on[2]; /* transports */
    int failed;
} outcome;

/* In memory that the ranks share. */
typedef struct trial {
    char name[64];
    outcome all[2];
} trial;

static rf_config gpu_config(int rank)
{
    static const rf_pack *const packs[] = {&pack};
    rf_config c = group_config();
    c.backend = RF_BACKEND_CUDA;
    c.device = rank;
    c.packs = packs;
    c.capacity_bytes = 64 << 10;
    return c;
}

/* One name for all comms of a run: they are made in a row. */
static rf_result make(const char *name, int rank, int world, rf_comm **out, rf_error *err)
{
    rf_config config = gpu_config(rank);
    return group_try(&rfi_backend_cuda, name, &config, rank, world, out, err);
}

/* What measurements are kept by. */
static void check_identity(const rf_comm *comm, int n)
{
    RANK_CHECK(strstr(comm->hw_text, "r0.gpu=Fake\n") && strstr(comm->hw_text, "memory_gib=128\n"),
               "call %d: %s", n, comm->hw_text);
}

static outcome note(rf_comm *comm, rf_result result)
{
    outcome o = {.result = result, .failed = fake_driver_failed() != NULL};
    for (size_t i = 0; i < 2 && !result; i++) {
        rf_transport_info info;
        rf_transport_query(comm, i, &info);
        o.on[i] = info.on;
    }
    return o;
}

static void check_same(const trial *t, int n)
{
    const char *call = fake_driver_failed();
    const outcome *all = t->all;
    RANK_CHECK(all[0].result == all[1].result && !memcmp(all[0].on, all[1].on, sizeof all[0].on),
               "call %d (%s): %d, transports %d %d, and %d, transports %d %d", n,
               call ? call : "the other rank's", all[0].result, all[0].on[0], all[0].on[1],
               all[1].result, all[1].on[0], all[1].on[1]);
}

static void check_clear(const rf_comm *comm, int n)
{
    for (int i = 0, t; (t = rfi_transport_on(comm, i)) >= 0; i++)
        for (uint32_t c = 0; c < comm->config.channels; c++) {
            const rf_params *p = &comm->channels[c].params[t];
            const unsigned char *slots = p->peer[p->rank] + RF_REGION_HEADER;
            unsigned char empty = t == RFI_TRANSPORT_PEER ? 0xff : 0;
            RANK_CHECK(p->control->generation == comm->generation, "call %d: generation %u", n,
                       p->control->generation);
            for (int f = 0; f < RF_CONTROLS; f++)
                RANK_CHECK(!p->control[f].epoch && !p->control[f].poison && !p->control[f].busy &&
                               !p->control[f].told,
                           "call %d: control line %d is not clear", n, f);
            RANK_CHECK(slots[0] == empty && !memcmp(slots, slots + 1, p->slot_bytes - 1),
                       "call %d: channel %u has other words than its sentinel", n, c);
        }
}

static void use_and_end(rf_comm *comm)
{
    const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_GRAPH, 1, 1024};
    rf_error err = {0};
    rf_result result = rf_prepare(comm, 0, &shape, 1, &err);
    RANK_CHECK(!result, "%s", err.text);
    group_close(comm);
}

/* Brings this rank's outcome to the other one. Is there a call that was not made to fail yet? */
static int compare(trial *t, int rank, int victim, outcome mine, int n)
{
    t->all[rank] = mine;
    rank_barrier();
    check_same(t, n);
    int more = t->all[victim].failed;
    rank_barrier();
    return more;
}

static rf_comm *make_whole(const trial *t, int rank, int world)
{
    rf_comm *comm = NULL;
    rf_error err = {0};
    rf_result result = make(t->name, rank, world, &comm, &err);
    RANK_CHECK(!result, "%s", err.text);
    outcome o = note(comm, result);
    RANK_CHECK(o.on[0] && o.on[1], "transports %d %d", o.on[0], o.on[1]);
    return comm;
}

static void creates(int rank, int world, void *arg)
{
    use_and_end(make_whole(arg, rank, world)); /* the driver is opened once in a process */
    int more = 1, fds = group_fds();
    for (int n = 1; more; n++)
        for (int victim = 0; victim < world; victim++) {
            rf_comm *comm = NULL;
            rf_error err = {0};
            fake_driver_fail(rank == victim ? n : 0);
            rf_result result = make(((trial *)arg)->name, rank, world, &comm, &err);
            more = compare(arg, rank, victim, note(comm, result), n);
            fake_driver_fail(0);
            RANK_CHECK(!result || err.text[0], "call %d: no text", n);
            if (!result) {
                check_identity(comm, n);
                RANK_CHECK(comm->transport[RFI_TRANSPORT_PEER].on || !fake_driver_mapped(),
                           "call %d: memory that is not used is kept", n);
                check_clear(comm, n);
                use_and_end(comm);
            }
            RANK_CHECK(fake_driver_live() == 0, "call %d: %d things are left", n,
                       fake_driver_live());
            RANK_CHECK(group_fds() == fds, "call %d: %d descriptors before, %d after", n, fds,
                       group_fds());
        }
    use_and_end(make_whole(arg, rank, world));
}

static void resets(int rank, int world, void *arg)
{
    rf_comm *comm = make_whole(arg, rank, world);
    rf_error err = {0};
    rf_health health;
    rf_result result;
    int more = 1;
    for (int n = 1; more; n++)
        for (int victim = 0; victim < world; victim++) {
            rf_comm_abort(comm);
            rank_barrier();
            fake_driver_fail(rank == victim ? n : 0);
            result = rf_comm_reset(comm, 20000, &err);
            rf_comm_check(comm, &health);
            more = compare(arg, rank, victim, note(comm, result), n);
            fake_driver_fail(0);
            RANK_CHECK(!result == !health.code, "call %d: %d, but health is %d", n, (int)result,
                       (int)health.code);
            result = rf_comm_reset(comm, 20000, &err);
            RANK_CHECK(!result, "%s", err.text);
            rf_comm_check(comm, &health);
            RANK_CHECK(!health.code, "call %d: health is %d", n, (int)health.code);
            check_clear(comm, n);
            rank_barrier();
        }
    use_and_end(comm);
    RANK_CHECK(fake_driver_live() == 0, "%d things are left", fake_driver_live());
}

static void run(rank_fn ranks)
{
    trial *t = ranks_shared(sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", group_name());
    const char *verdict = ranks_run(2, ranks, t, NULL);
    ranks_shared_free(t, sizeof *t);
    RANKS_ASSERT(verdict);
}

static void create_survives_any_failure(void **state)
{
    (void)state;
    run(creates);
}

static void reset_says_any_failure(void **state)
{
    (void)state;
    run(resets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_survives_any_failure),
        cmocka_unit_test(reset_says_any_failure),
    };
    return cmocka_run_group_tests_name("cuda_driver", tests, NULL, NULL);
}
