/* Defaults of the hardware class, for shapes that nobody measured: data, by size. */
#include "core/codes.h"
#include "core/comm.h"

#define OS   RFI_ALGO_ONE_SHOT
#define TS   RFI_ALGO_TWO_SHOT
#define TAG  RFI_WIRE_TAG
#define RING RFI_WIRE_FLAG

/* Between two peers, one-shot moves the same bytes as two-shot and waits once.
 *
 * Host memory, measured by two H200s on PCIe Gen5, in graphs, bf16, without dependent launch; us,
 * and the best that was found in brackets:
 *
 *     tag    4 KiB 3.30 (3.30)   8 KiB 3.47 (3.20)  16 KiB 3.45 (3.45)   32 KiB 4.17 (4.03)
 *           64 KiB 5.52 (5.52) 128 KiB 7.88 (7.60) 256 KiB 11.6 (11.6)  512 KiB 19.5 (19.5)
 *            1 MiB 36.9 (36.4)
 *     ring   2 MiB 69.6 (68.8)   4 MiB 120 (120)     8 MiB 220 (220)     16 MiB 420 (420)
 *           32 MiB 821 (821)    64 MiB 1627 (1622)
 *
 * A pack for each thread wins as long as blocks last, and then as many for each block: 64 KiB take
 * 5.52 in 37 blocks of 128 and 6.07 in 19; 256 KiB 11.6 in 49 (three packs a thread) and 12.0 in
 * 37. Beyond `blocks` the bus is full, and more threads only poll: 1 MiB 39.1 in 74. The ring's
 * two-shot beats its one-shot by 2 to 5 % from 4 MiB on, and tag's is 3 % behind its one-shot at
 * 256 KiB. Worlds beyond two were not measured: there two-shot reads less, and waits twice. */
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
        uint8_t algo, algo_of_two, wire, unroll;
        uint16_t threads, blocks; /* blocks: no more of so many threads */
    } host;
} classes[] = {
    {8u << 10, {OS, RFI_COPY_CACHED, 64}, {OS, OS, 128}, {OS, OS, TAG, 1, 128, 49}},
    {64u << 10, {OS, RFI_COPY_CACHED, 64}, {OS, OS, 128}, {OS, OS, TAG, 1, 128, 49}},
    {256u << 10, {TS, RFI_COPY_CACHED, 256}, {TS, OS, 256}, {TS, OS, TAG, 1, 128, 49}},
    {1u << 20, {TS, RFI_COPY_CACHED, 256}, {TS, OS, 512}, {TS, OS, TAG, 1, 128, 49}},
    {UINT64_MAX, {TS, RFI_COPY_CACHED, 512}, {TS, OS, 1024}, {TS, TS, RING, 2, 576, 16}},
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

/* As many threads as the class has on host memory, in blocks of this variant. */
static uint32_t host_blocks(const rf_variant *v, int c)
{
    return ((uint32_t)classes[c].host.threads * classes[c].host.blocks + v->threads - 1u) /
           v->threads;
}

uint32_t rfi_pack_bytes(const rf_variant *v)
{
    return v->wire == RFI_WIRE_TAG ? RF_TAG_PACK_BYTES((uint32_t)rf_dtype_size(v->dtype)) : 16;
}

/* On GPUs: every thread that moves data one turn, as far as blocks run at once and have work. */
uint32_t rfi_usual_grid(const rf_comm *comm, const rf_variant *v, uint64_t bytes)
{
    if (v->transport == RFI_TRANSPORT_CPU)
        return rfi_class_grid(bytes);
    uint32_t most = comm->max_grid, pack = rfi_pack_bytes(v), threads = v->threads;
    if (v->wire == RING) {
        threads -= RF_RING_SERVANTS;
        most = most < RF_RING_LANES ? most : RF_RING_LANES;
    }
    uint64_t packs = (bytes + pack - 1) / pack, turn = (uint64_t)threads * v->unroll;
    uint32_t owners = v->algo == OS ? 1 : v->algo == RFI_ALGO_ISLANDS ? v->world / 2 : v->world;
    packs = (packs + owners - 1) / owners;
    if (v->transport == RFI_TRANSPORT_HOST && most > host_blocks(v, rfi_class_of(bytes)))
        most = host_blocks(v, rfi_class_of(bytes));
    uint64_t tiles = (packs + turn - 1) / turn;
    uint64_t each = 1; /* for every block, where there are more than blocks */
    if (v->transport == RFI_TRANSPORT_HOST && most && tiles > most)
        each = (tiles + most - 1) / most;
    uint64_t blocks = (tiles + each - 1) / each;
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
    if (v->wire == RING) /* never better where stores arrive: pays two crossings more */
        return 0;
    return (v->algo == algo) * 2 + (v->threads == classes[c].peer.threads);
}

/* Among variants of the same code and class, at most 19. Kernels that know their rank, and more in
 * flight where the grid does not already do that; through host memory that hardly counts beside the
 * class's own way to spread the packs. */
static int finer_score(const rf_variant *v, int c)
{
    if (v->transport == RFI_TRANSPORT_HOST)
        return (v->unroll == classes[c].host.unroll) * 9 +
               (v->threads == classes[c].host.threads) * 5 + v->by_rank * 2;
    int unroll = v->unroll > 4 ? 4 : v->unroll;
    return v->by_rank * 8 + (v->transport == RFI_TRANSPORT_PEER ? 4 - unroll : unroll);
}

/* Fast code first, then what the class says. */
static int score(const rf_variant *v, int c)
{
    return v->isa * 100 + as_in_class(v, c) * 20 + finer_score(v, c);
}

int rfi_class_score(const rf_comm *comm, const rf_variant *v, uint64_t bytes)
{
    int better = 0;
    while (rfi_transport_on(comm, better) >= 0 && rfi_transport_on(comm, better) != v->transport)
        better++;
    return score(v, rfi_class_of(bytes)) - 100 * better;
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
    uint64_t bytes = rfi_shape_bytes(shape);
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
