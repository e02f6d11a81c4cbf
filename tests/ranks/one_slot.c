/* The cpu kernels with one slot fewer than the protocol needs: negative control of test_streams. */
#include "abi.h"
#undef RF_SLOTS
#define RF_SLOTS 1

#define RF_SHARD_DTYPE 0 /* f32 */
#include "cpu/scalar.h"
#include "cpu/all_reduce.h"

#include "one_slot.h"

static RF_TARGET void one_shot(const rf_params *p)
{
    all_reduce(p, (rf_tactic){.world = 3, .unroll = 1});
}

const rf_variant one_slot = {
    .hash = {1}, .name = "one_slot", .world = 3, .unroll = 1, .entry = one_shot};
