/* MPI_Allreduce of f32 sums, timed as in allreduce.h:
 *
 *     mpi_allreduce MILLISECONDS_PER_SIZE BYTES... */
#define _GNU_SOURCE
#include <mpi.h>

#include "allreduce.h"

static void all_reduce(const void *in, void *out, size_t count)
{
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void max(double *values, int n)
{
    MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static unsigned f32(int small)
{
    float x = (float)small;
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

int main(int argc, char **argv)
{
    side s = {.size = 4, .all_reduce = all_reduce, .barrier = barrier, .max = max, .element = f32};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.world);
    bind_rank(s.rank);
    int wrong = 0;
    for (int a = 2; a < argc; a++)
        wrong |= time_size(&s, (size_t)atoll(argv[a]), atof(argv[1]) * 1e6);
    MPI_Finalize();
    return wrong;
}
