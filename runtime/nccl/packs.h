/* The packs that the shim is linked with. */
#ifndef RANKFOLD_SHIM_PACKS_H
#define RANKFOLD_SHIM_PACKS_H

#include "rankfold.h"

/* NULL = none for this backend. */
const rf_pack *rfi_shim_pack(rf_backend_kind backend);

#endif
