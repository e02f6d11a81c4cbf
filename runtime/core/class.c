/* Defaults of the hardware class, for shapes that nobody measured: data, by size. */
#include "core/codes.h"
#include "core/comm.h"

#define OS  RFI_ALGO_ONE_SHOT
#define TS  RFI_ALGO_TWO_SHOT
#define E12 RFI_WIRE_EPOCH

/* Between two peers, one-shot moves the same bytes as two-shot and waits once. */
static const struct {
    uint64_t bytes; /* up to and including */
    struct {
        uint8_t algo, copy;
        uint32_t grid; /* KiB of payload per step */
    } cpu;
    struct {
        uint8_t algo, algo_of_two;
        uint16_t threads;
    } peer;
    struct {
        uint8_t algo, algo_of_two, wire;
    } host;
} classes[] = {
    {8u << 10, {OS, RFI_COPY_CACHED, 64}, {OS, OS, 128}, {OS, OS, E12}},
    {64u << 10, {OS, RFI_COPY_CACHED, 64}, {OS, OS, 128}, {OS, OS, E12}},
    {256u << 10, {TS, RFI_COPY_CACHED, 256}, {TS, OS, 256}, {TS, OS, E12}},
    {1u << 20, {TS, RFI_COPY_CACHED, 256}, {TS, OS, 512}, {TS, OS, E12}},
    {UINT64_MAX, {TS, RFI_COPY_CACHED, 512}, {TS, OS, 1024}, {TS, OS, RFI_WIRE_FLAG}},
};
#define N_CLASSES ((int)(sizeof classes / sizeof *classes))
_Static_assert(N_CLASSES <= RFI_CLASSES, "comm.class_plan is too small");

int rfi_class_count(void)
{
    return N_CLASSES;
}

int rfi_class_of(uint64_t bytes)
{
    int c = 0;
    while (bytes > classes[c].bytes)
        c++;
    return c;
}

uint64_t rfi_class_bytes(int size_class)
{
    return size_class < N_CLASSES - 1 ? classes[size_class].bytes
                                      : 2 * classes[N_CLASSES - 2].bytes;
}

uint32_t rfi_class_grid(uint64_t bytes)
{
    return classes[rfi_class_of(bytes)].cpu.grid;
}

/* More blocks than this poll host memory to no avail: the bus is full. */
#define HOST_BLOCKS 32u

/* On GPUs: every thread one turn, as far as blocks run at once. */
uint32_t rfi_usual_grid(const rf_comm *comm, const rf_variant *v, uint64_t bytes)
{
    if (v->transport == RFI_TRANSPORT_CPU)
        return rfi_class_grid(bytes);
    uint32_t most = comm->max_grid, pack = v->wire == RFI_WIRE_EPOCH ? 12 : 16;
    uint64_t packs = (bytes + pack - 1) / pack, turn = (uint64_t)v->threads * v->unroll;
    if (v->algo == TS)
        packs = (packs + v->world - 1) / v->world;
    if (v->transport == RFI_TRANSPORT_HOST && most > HOST_BLOCKS)
        most = HOST_BLOCKS;
    uint64_t blocks = (packs + turn - 1) / turn;
    return blocks < most ? (uint32_t)blocks : most;
}

static int as_in_class(const rf_variant *v, int c)
{
    if (v->transport == RFI_TRANSPORT_CPU)
        return (v->algo == classes[c].cpu.algo) * 2 + (v->copy == classes[c].cpu.copy);
    if (v->transport == RFI_TRANSPORT_HOST) {
        uint8_t algo = v->world <= 2 ? classes[c].host.algo_of_two : classes[c].host.algo;
        return (v->algo == algo) + (v->wire == classes[c].host.wire) * 2;
    }
    uint8_t algo = v->world <= 2 ? classes[c].peer.algo_of_two : classes[c].peer.algo;
    return (v->algo == algo) * 2 + (v->threads == classes[c].peer.threads);
}

/* Fast code first, then what the class says, then kernels that know their rank; more in flight,
 * where the grid does not already do that. */
static int score(const rf_variant *v, int c)
{
    int unroll = v->unroll > 4 ? 4 : v->unroll;
    return v->isa * 100 + as_in_class(v, c) * 20 + v->by_rank * 8 +
           (v->transport == RFI_TRANSPORT_PEER ? 4 - unroll : unroll);
}

static const rf_variant *best_of(const rf_comm *comm, const rf_shape *shape, int transport, int c)
{
    const rf_variant *best = NULL;
    for (size_t i = 0; i < comm->n_variants; i++) {
        const rf_variant *v = comm->variants[i];
        if (v->transport != transport || v->hidden || v->flags || rfi_refusal(comm, v, shape))
            continue;
        if (!best || score(v, c) > score(best, c))
            best = v;
    }
    return best;
}

/* The best transport that can do it at all: between classes of hardware they differ by more than
 * tactics do. */
int rfi_class_choose(const rf_comm *comm, const rf_shape *shape, rfi_class_choice *out)
{
    uint64_t bytes = shape->rows * shape->hidden * rf_dtype_size(shape->dtype);
    int c = rfi_class_of(bytes);
    const rf_variant *best = NULL;
    for (int i = 0, t; !best && (t = rfi_transport_on(comm, i)) >= 0; i++)
        best = best_of(comm, shape, t, c);
    if (!best)
        return 0;
    *out = (rfi_class_choice){.variant = best,
                              .grid = rfi_usual_grid(comm, best, bytes),
                              .rung = as_in_class(best, c) == 3 ? RF_RUNG_CLASS : RF_RUNG_GENERIC};
    return 1;
}
