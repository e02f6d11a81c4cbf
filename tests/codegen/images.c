/* Links one CUDA pack and looks at its images. Stands in for the runtime, whose ABI symbol it
 * defines. */
#include "abi.h"

#include <stdio.h>
#include <string.h>

#define FATBIN 0xba55ed50u /* how nvcc's fat binaries begin */

extern const int rfi_abi_4;
const int rfi_abi_4 = RF_ABI;

extern const rf_pack PACK;

int main(void)
{
    for (uint32_t i = 0; i < PACK.n_shards; i++) {
        const rf_shard *shard = PACK.shards[i];
        uint32_t magic = 0;
        uint64_t bytes = 0;
        if (shard->image) {
            memcpy(&magic, shard->image, sizeof magic);
            memcpy(&bytes, (const char *)shard->image + 8, sizeof bytes);
        }
        printf("%s image of %llu bytes%s\n", shard->name, (unsigned long long)bytes,
               magic == FATBIN && bytes ? "" : " WRONG");
        for (uint32_t k = 0; k < shard->n; k++) {
            const rf_variant *v = &shard->variants[k];
            int owned = strstr(v->name, "_own_") != NULL, late = strstr(v->name, "_dep") != NULL;
            if (v->entry || !v->threads || v->by_rank != owned ||
                v->flags != ((late ? RF_VARIANT_DEPENDENT : 0u) |
                             (strstr(v->name, "_il_") ? RF_VARIANT_REASSOC : 0u))) {
                printf("%s WRONG\n", v->name);
            }
        }
    }
    printf("toolchain %s\n", PACK.toolchain);
    return 0;
}
