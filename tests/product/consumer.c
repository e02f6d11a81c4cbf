/* A product: two ranks by fork, one all-reduce, checked against the oracle. Uses the public header
 * only, and is built by plain cc against an installed prefix (tests/product/run). FROZEN: decisions
 * come from a C table, no SQLite. */
#include <rankfold.h>

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 2, COUNT = 4 * 1024 };

RF_DECLARE_PACK(cpu);
#ifdef FROZEN
extern const rf_frozen product_decisions;
#endif

static float inputs[WORLD][COUNT], sum[COUNT], expected[COUNT];

static rf_result open_store(rf_store **store, rf_error *err)
{
#ifdef FROZEN
    return rf_store_frozen(&product_decisions, store, err);
#else
    return rf_store_open(NULL, NULL, RF_STORE_READ, store, err);
#endif
}

static rf_result reduce(int rank, const char *name, rf_error *err)
{
    const rf_pack *packs[] = {&rf_pack_cpu};
    const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, COUNT};
    rf_config config = RF_CONFIG_INIT;
    rf_bootstrap boot;
    rf_comm *comm = NULL;
    rf_plan_info plan;
    rf_result result;

    config.packs = packs;
    config.n_packs = 1;
    config.deadline_ms = 10000;
    config.create_timeout_ms = 10000;
    if (rank == 0 && (result = open_store(&config.store, err))) /* the other ranks need none */
        return result;
    if (config.store && rf_store_warning(config.store))
        fprintf(stderr, "store: %s\n", rf_store_warning(config.store));

    if (!(result = rf_bootstrap_socket(name, rank, WORLD, &boot, err))) {
        result = rf_comm_create(&config, &boot, &comm, err);
        rf_bootstrap_free(&boot);
    }
    if (!result)
        result = rf_prepare(comm, 0, &shape, 1, err);
    if (!result && (result = rf_all_reduce(comm, 0, inputs[rank], sum, COUNT, RF_F32, NULL)))
        *err = *rf_comm_error(comm);
    if (!result && rank == 0 && !(result = rf_plan_query(comm, 0, COUNT, RF_F32, RF_EAGER, &plan)))
        printf("plan: %s, grid %u: %s\n", plan.variant, plan.grid, plan.reason);
    if (!result)
        result = rf_comm_close(comm, 10000, err);
    rf_comm_destroy(comm);
    rf_store_close(config.store);
    if (!result && memcmp(sum, expected, sizeof sum) != 0) {
        snprintf(err->text, sizeof err->text, "the sum differs from the oracle");
        result = RF_E_WRONG;
    }
    return result;
}

static int rank_main(int rank, const char *name)
{
    rf_error err = {0};
    rf_result result = reduce(rank, name, &err);

    if (result)
        fprintf(stderr, "rank %d: %s: %s\n", rank, rf_strerror(result), err.text);
    fflush(stdout);
    return result != RF_OK;
}

int main(void)
{
    const void *in[WORLD] = {inputs[0], inputs[1]};
    char name[64];
    int failed = 0, status;
    pid_t child;

    if (rf_version_number() != RF_VERSION_NUMBER) {
        fprintf(stderr, "header %d, library %u\n", RF_VERSION_NUMBER, rf_version_number());
        return 1;
    }
    for (int i = 0; i < COUNT; i++)
        inputs[0][i] = 1.0f / (float)(i + 1), inputs[1][i] = -3.0f * (float)i;
    if (rf_oracle_all_reduce(in, expected, COUNT, RF_F32, WORLD))
        return 1;

    snprintf(name, sizeof name, "rankfold-product-%d", (int)getpid());
    child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0)
        _exit(rank_main(1, name));
    failed = rank_main(0, name);
    if (waitpid(child, &status, 0) != child || status != 0)
        failed = 1;
    puts(failed ? "failed" : "ok: the sum of both ranks equals the oracle's");
    return failed;
}
