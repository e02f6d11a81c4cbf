/* rf_all_reduce between two processes, timed as in allreduce.h, with what the database decides:
 *
 *     rankfold_allreduce MILLISECONDS_PER_SIZE DTYPE BYTES...
 *
 * The database is $RANKFOLD_DB; what it lacks is tuned first (and then is there for the next run).
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "allreduce.h"
#include "rankfold.h"

RF_DECLARE_PACK(cpu);

#define WORLD     2
#define MOST      64
#define BUDGET_MS 20000

/* Shared by the two processes. */
static struct {
    atomic_uint arrived;
    double values[WORLD][BATCHES];
} * shared;

static rf_comm *comm;
static rf_dtype dtype;
static int rank;

static void die(const char *step, const rf_error *err)
{
    fprintf(stderr, "rankfold_allreduce: rank %d: %s: %s\n", rank, step, err->text);
    _exit(2);
}

static void all_reduce(const void *in, void *out, size_t count)
{
    if (rf_all_reduce(comm, 0, in, out, count, dtype, NULL) != RF_OK)
        die("all_reduce", rf_comm_error(comm));
}

static void barrier(void)
{
    unsigned all = atomic_fetch_add(&shared->arrived, 1) / WORLD * WORLD + WORLD;
    while (atomic_load(&shared->arrived) < all)
        ;
}

static void max(double *values, int n)
{
    memcpy(shared->values[rank], values, (size_t)n * sizeof *values);
    barrier();
    for (int i = 0; i < n; i++)
        for (int r = 0; r < WORLD; r++)
            values[i] = values[i] > shared->values[r][i] ? values[i] : shared->values[r][i];
    barrier();
}

/* |small| is at most 12. */
static unsigned element(int small)
{
    static const unsigned f16[] = {0,      0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600,
                                   0x4700, 0x4800, 0x4880, 0x4900, 0x4980, 0x4a00};
    float x = (float)small;
    unsigned bits, sign = small < 0 ? 0x8000 : 0;
    memcpy(&bits, &x, sizeof bits);
    return dtype == RF_F32 ? bits : dtype == RF_BF16 ? bits >> 16 : sign | f16[abs(small)];
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc - 3 > MOST || rf_dtype_parse(argv[2]) < 0) {
        fprintf(stderr, "usage: rankfold_allreduce MILLISECONDS_PER_SIZE DTYPE BYTES...\n");
        return 2;
    }
    dtype = (rf_dtype)rf_dtype_parse(argv[2]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    char name[64];
    snprintf(name, sizeof name, "rankfold-bench-%d", (int)getpid());
    pid_t parent = getpid(), child = fork();
    rank = child == 0;
    if (rank && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(2);
    bind_rank(rank);

    const rf_pack *packs[] = {&rf_pack_cpu};
    rf_error err = {0};
    rf_config config = RF_CONFIG_INIT;
    config.packs = packs, config.n_packs = 1;
    if (rank == 0 && rf_store_open(NULL, NULL, 0, &config.store, &err) != RF_OK)
        die("store", &err);
    rf_bootstrap boot;
    if (rf_bootstrap_socket(name, rank, WORLD, &boot, &err) != RF_OK)
        die("bootstrap", &err);
    if (rf_comm_create(&config, &boot, &comm, &err) != RF_OK)
        die("create", &err);
    rf_bootstrap_free(&boot);

    side s = {.rank = rank,
              .world = WORLD,
              .size = rf_dtype_size(dtype),
              .all_reduce = all_reduce,
              .barrier = barrier,
              .max = max,
              .element = element};
    rf_shape shapes[MOST];
    size_t n = 0;
    for (int a = 3; a < argc; a++)
        shapes[n++] =
            (rf_shape){RF_ALL_REDUCE, dtype, RF_EAGER, 1, (size_t)atoll(argv[a]) / s.size};
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    options.budget_ms = BUDGET_MS;
    rf_tune_summary tuned;
    if (rf_tune(comm, 0, shapes, n, &options, &tuned, &err) != RF_OK)
        die("tune", &err);
    if (rank == 0 && tuned.measured)
        fprintf(stderr, "tuned %s: %u shapes, %u candidates, %.0f s\n", argv[2], tuned.shapes,
                tuned.measured, tuned.seconds);

    int wrong = 0;
    for (int a = 3; a < argc; a++)
        wrong |= time_size(&s, (size_t)atoll(argv[a]), atof(argv[1]) * 1e6);
    rf_comm_close(comm, 5000, NULL);
    rf_comm_destroy(comm);
    rf_store_close(config.store);
    if (rank)
        _exit(wrong);
    int status = 0;
    waitpid(child, &status, 0);
    return wrong || status != 0;
}
