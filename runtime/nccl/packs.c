/* Its build edge names them: CPU_PACK, GPU_PACK. */
#include "nccl/packs.h"

#include <stddef.h>

extern const rf_pack CPU_PACK;
#ifdef GPU_PACK
extern const rf_pack GPU_PACK;
#endif

const rf_pack *rfi_shim_pack(rf_backend_kind backend)
{
#ifdef GPU_PACK
    if (backend == RF_BACKEND_CUDA)
        return &GPU_PACK;
#endif
    return backend == RF_BACKEND_CPU ? &CPU_PACK : NULL;
}
