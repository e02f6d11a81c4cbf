/* MPI_Allreduce of f32 sums, timed as tests/bench/rankfold_allreduce.c times Rankfold: batches of
 * calls behind a barrier, a batch's time is the maximum over ranks, a size's time the median over
 * batches. Prints "bytes ns" lines; exits 1 when a result is wrong.
 *
 *     mpi_allreduce MILLISECONDS_PER_SIZE BYTES... */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

#define BATCHES 31

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small integers: every sum is exact, whatever the order. */
static float value(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 101) - 50.0f;
}

static double run(const float *in, float *out, int count, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < calls; i++) {
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) * 1e9 / calls;
}

int main(int argc, char **argv)
{
    int rank, world, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    double budget_ns = argc > 1 ? atof(argv[1]) * 1e6 : 0;
    for (int a = 2; a < argc; a++) {
        size_t bytes = (size_t)atoll(argv[a]), count = bytes / sizeof(float);
        float *in = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        float *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        if (!in || !out) {
            MPI_Abort(MPI_COMM_WORLD, 2);
            return 2;
        }
        for (size_t i = 0; i < count; i++) {
            in[i] = value(rank, i);
        }
        run(in, out, (int)count, 3);
        double once = run(in, out, (int)count, 5), ns[BATCHES], worst[BATCHES];
        int calls = (int)(budget_ns / BATCHES / once);
        calls = calls < 1 ? 1 : calls > 20000 ? 20000 : calls;
        MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int b = 0; b < BATCHES; b++) {
            ns[b] = run(in, out, (int)count, calls);
        }
        MPI_Reduce(ns, worst, BATCHES, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        for (size_t i = 0; i < count; i++) {
            float want = 0;
            for (int r = 0; r < world; r++) {
                want += value(r, i);
            }
            wrong |= out[i] != want;
        }
        if (rank == 0) {
            qsort(worst, BATCHES, sizeof *worst, ascending);
            printf("%zu %.1f\n", bytes, worst[BATCHES / 2]);
            fflush(stdout);
        }
        free(in);
        free(out);
    }
    int any = 0;
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return any;
}
