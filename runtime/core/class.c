/* Defaults of the hardware class, for shapes that nobody measured: data, by size. */
#include "core/codes.h"
#include "core/comm.h"

static const struct {
    uint64_t bytes; /* up to and including */
    uint8_t algo, copy;
    uint32_t grid; /* KiB of payload per step */
} classes[] = {
    {8u << 10, RFI_ALGO_ONE_SHOT, RFI_COPY_CACHED, 64},
    {64u << 10, RFI_ALGO_ONE_SHOT, RFI_COPY_CACHED, 64},
    {256u << 10, RFI_ALGO_TWO_SHOT, RFI_COPY_CACHED, 256},
    {1u << 20, RFI_ALGO_TWO_SHOT, RFI_COPY_CACHED, 256},
    {UINT64_MAX, RFI_ALGO_TWO_SHOT, RFI_COPY_CACHED, 512},
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
    return classes[rfi_class_of(bytes)].grid;
}

/* Fast code first, then the algorithm and the copy of the class, then more in flight. */
static int score(const rf_variant *v, int c)
{
    return v->isa * 100 + (v->algo == classes[c].algo) * 40 + (v->copy == classes[c].copy) * 20 +
           (v->unroll > 4 ? 4 : v->unroll);
}

int rfi_class_choose(const rf_comm *comm, const rf_shape *shape, rfi_class_choice *out)
{
    int c = rfi_class_of(shape->rows * shape->hidden * rf_dtype_size(shape->dtype));
    const rf_variant *best = NULL;
    for (size_t i = 0; i < comm->n_variants; i++) {
        const rf_variant *v = comm->variants[i];
        if (v->hidden || v->flags || rfi_refusal(comm, v, shape))
            continue;
        if (!best || score(v, c) > score(best, c))
            best = v;
    }
    if (!best)
        return 0;
    int fits = best->algo == classes[c].algo && best->copy == classes[c].copy;
    *out = (rfi_class_choice){
        .variant = best, .grid = classes[c].grid, .rung = fits ? RF_RUNG_CLASS : RF_RUNG_GENERIC};
    return 1;
}
