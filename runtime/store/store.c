/* What every store shares. */
#include "store/store.h"

uint64_t rfi_bucket(uint64_t bytes)
{
    uint64_t bucket = 64;
    while (bucket < bytes && bucket < (UINT64_C(1) << 62))
        bucket *= 2;
    return bucket;
}

const char *rf_store_warning(const rf_store *store)
{
    return store ? store->v->warning(store) : NULL;
}

void rf_store_close(rf_store *store)
{
    if (store)
        store->v->close(store);
}
