/* The packs that this program is linked with: its build edge names the one for GPUs. */
#include "cli/cli.h"

RF_DECLARE_PACK(cpu);
#ifdef GPU_PACK
extern const rf_pack GPU_PACK;
#endif

const rf_cli_pack rf_cli_packs[] = {
    {RF_BACKEND_CPU, &rf_pack_cpu},
#ifdef GPU_PACK
    {RF_BACKEND_CUDA, &GPU_PACK},
#endif
};
const size_t rf_cli_n_packs = sizeof rf_cli_packs / sizeof *rf_cli_packs;
