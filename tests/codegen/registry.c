/* Links the packs cpu and cpu_small of a small tree and prints their registries, one variant a
 * line: sku shard name hash. Stands in for the runtime, whose ABI symbol it defines. */
#include "abi.h"

#include <stdio.h>

extern const int rfi_abi_4;
const int rfi_abi_4 = RF_ABI;

extern const rf_pack rf_pack_cpu, rf_pack_cpu_small;

static int print_pack(const rf_pack *pack)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pack->n_shards; i++) {
        const rf_shard *shard = pack->shards[i];
        for (uint32_t k = 0; k < shard->n; k++, n++) {
            const rf_variant *v = &shard->variants[k];
            printf("%s %s %s ", pack->sku, shard->name, v->name);
            for (size_t b = 0; b < sizeof v->hash; b++) {
                printf("%02x", v->hash[b]);
            }
            printf(" %u %u %u %u %u%s\n", v->world, v->dtype, v->algo, v->isa, v->unroll,
                   v->entry && v->world == shard->world ? "" : " WRONG");
        }
    }
    printf("%s: %s\n", pack->sku, pack->toolchain);
    return n == pack->n_variants && pack->abi == RF_ABI && pack->size == sizeof *pack &&
           pack->abi_witness == &rfi_abi_4;
}

int main(void)
{
    return print_pack(&rf_pack_cpu) && print_pack(&rf_pack_cpu_small) ? 0 : 1;
}
