#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>

#include "core/codes.h"
#include "tune/candidates.h"

/* From "fits in L1 twice" to "fits in L2 twice". */
static const uint32_t step_kib[] = {16, 64, 256, 1024};
#define N_STEPS (sizeof step_kib / sizeof *step_kib)

/* Blocks that poll host memory: a bus is full with fewer. */
#define HOST_MOST 96u

/* More steps than this in one call and the step is too small to be worth measuring. */
#define MAX_STEPS 256u

size_t rfi_grids(uint64_t bytes, uint32_t grids[RFI_GRIDS])
{
    size_t n = 0;
    for (size_t i = 0; i < N_STEPS; i++) {
        uint64_t step = (uint64_t)step_kib[i] * 1024;
        int last = step >= bytes || i + 1 == N_STEPS;
        if (last || bytes / step <= MAX_STEPS)
            grids[n++] = step_kib[i];
        if (last)
            break;
    }
    return n;
}

size_t rfi_block_grids(uint32_t usual, uint32_t most, uint32_t grids[RFI_GRIDS])
{
    const uint32_t wanted[] = {(usual + 1) / 2, usual, usual <= most / 2 ? 2 * usual : most};
    size_t n = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (n == 0 || wanted[i] > grids[n - 1])
            grids[n++] = wanted[i];
    return n;
}

size_t rfi_host_grids(uint32_t useful, uint32_t most, uint32_t grids[RFI_GRIDS])
{
    uint32_t top = 1;
    while (top < useful && 2 * top <= most)
        top *= 2;
    uint32_t first = top >> (RFI_GRIDS - 1) ? top >> (RFI_GRIDS - 1) : 1;
    size_t n = 0;
    for (uint32_t g = first; g <= top; g *= 2)
        grids[n++] = g;
    return n;
}

/* 1, 2, 3, 4, 6, 8, 12 ...: powers of two, and what lies between two of them. */
static uint64_t next_share(uint64_t share)
{
    if (share == 1)
        return 2;
    return share % 3 ? share / 2 * 3 : share / 3 * 4;
}

size_t rfi_even_grids(uint64_t tiles, uint32_t most, uint32_t grids[RFI_GRIDS])
{
    uint32_t few[RFI_GRIDS] = {0}; /* descending */
    uint64_t before = (most < HOST_MOST ? most : HOST_MOST) + 1;
    size_t n = 0;
    for (uint64_t share = 1; n < RFI_GRIDS && before > 1; share = next_share(share)) {
        uint64_t grid = (tiles + share - 1) / share;
        if (grid < before) {
            few[n++] = (uint32_t)grid;
            before = grid;
        }
    }
    for (size_t i = 0; i < n; i++)
        grids[i] = few[n - 1 - i];
    return n;
}

static size_t grids_of(const rf_comm *comm, const rf_variant *v, uint64_t bytes,
                       uint32_t grids[RFI_GRIDS])
{
    if (v->transport == RFI_TRANSPORT_CPU)
        return rfi_grids(bytes, grids);
    uint32_t most = rfi_max_grid(comm);
    if (v->wire == RFI_WIRE_TAG) {
        uint64_t tile = (uint64_t)rfi_pack_bytes(v) * v->threads * v->unroll;
        uint32_t owners = v->algo == RFI_ALGO_ONE_SHOT ? 1 : v->world;
        return rfi_even_grids((bytes + tile * owners - 1) / (tile * owners), most, grids);
    }
    if (v->wire == RFI_WIRE_FLAG && most > RF_RING_LANES)
        most = RF_RING_LANES;
    if (v->transport == RFI_TRANSPORT_HOST) {
        uint64_t turn = 16ull * v->threads * v->unroll, blocks = (bytes + turn - 1) / turn;
        return rfi_host_grids(blocks < most ? (uint32_t)blocks : most, most, grids);
    }
    return rfi_block_grids(rfi_usual_grid(comm, v, bytes), most, grids);
}

/* Twice or half the blocks, or the size of a step, weighs as much as a smaller difference between
 * variants of the same algorithm. */
#define GRID_WEIGHT 5

double rfi_promise(const rf_comm *comm, const rf_variant *variant, uint32_t grid, uint64_t bytes)
{
    if (variant == &rfi_baseline)
        return INFINITY;
    double usual = rfi_usual_grid(comm, variant, bytes), ratio = grid && usual ? grid / usual : 1;
    return rfi_class_score(comm, variant, bytes) - GRID_WEIGHT * fabs(log2(ratio));
}

/* Not a candidate at all, as opposed to one that is refused here. */
static int serves(const rf_variant *v, const rf_shape *shape)
{
    return v->op == shape->op && v->dtype == shape->dtype &&
           (v->hidden == 0 || v->hidden == shape->hidden);
}

rf_result rfi_candidates(const rf_comm *comm, const rf_shape *shape, const char *filter,
                         rfi_tune_candidate **out, size_t *n, rf_error *err)
{
    size_t variants = rfi_variant_count(comm);
    rfi_tune_candidate *list = malloc((variants * RFI_GRIDS + 1) * sizeof *list);
    if (!list)
        return rfi_fail(err, RF_E_MEMORY, rf_comm_rank(comm), "tune",
                        "no memory for %zu candidates", variants * RFI_GRIDS);
    *n = 0;
    for (size_t i = 0; i < variants; i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        if (!serves(v, shape) || (filter && fnmatch(filter, v->name, 0) != 0))
            continue;
        const char *refusal = rfi_refusal(comm, v, shape);
        if (refusal)
            list[(*n)++] = (rfi_tune_candidate){v, 0, refusal};
        uint32_t grids[RFI_GRIDS];
        size_t n_grids = refusal ? 0 : grids_of(comm, v, rfi_shape_bytes(shape), grids);
        for (size_t g = 0; g < n_grids; g++)
            list[(*n)++] = (rfi_tune_candidate){v, grids[g], NULL};
    }
    if (rfi_has_baseline(comm) && !(filter && fnmatch(filter, rfi_baseline.name, 0)))
        list[(*n)++] = (rfi_tune_candidate){&rfi_baseline, 0, NULL};
    *out = list;
    return RF_OK;
}
