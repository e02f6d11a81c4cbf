/* The packs of a librankfold.so, for whoever opens it. Its link edge says which: -DPACKS="X(cpu)
 * X(h200)". */
#include <rankfold.h>

#define X(sku) RF_DECLARE_PACK(sku);
PACKS
#undef X

#define X(sku) &rf_pack_##sku,
const rf_pack *const rf_packs[] = {PACKS NULL};
