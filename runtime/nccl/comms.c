/* Which communicators are known. */
#include "nccl/shim.h"

#define MOST 1024

static rfi_entry entries[MOST];
static uint32_t used; /* entries that were ever in use */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

rfi_entry *rfi_entry_find(ncclComm_t comm)
{
    uint32_t n = __atomic_load_n(&used, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; comm && i < n; i++)
        if (__atomic_load_n(&entries[i].key, __ATOMIC_ACQUIRE) == comm)
            return &entries[i];
    return NULL;
}

rfi_entry *rfi_entry_add(ncclComm_t comm, uint64_t name)
{
    rfi_entry *e = NULL;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < used && !e; i++)
        if (!entries[i].key)
            e = &entries[i];
    if (!e && used < MOST) {
        e = &entries[used];
        pthread_mutex_init(&e->lock, NULL);
        __atomic_store_n(&used, used + 1, __ATOMIC_RELEASE);
    }
    if (e) {
        e->name = name;
        e->children = 0;
        e->pending = 0;
        __atomic_store_n(&e->key, comm, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return e;
}

void rfi_entry_drop(rfi_entry *e)
{
    pthread_mutex_lock(&lock);
    __atomic_store_n(&e->key, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

int rfi_shim_size(uint64_t bytes)
{
    int size = bytes > 1 ? 64 - __builtin_clzll(bytes - 1) : 0;
    return size < RFI_SHIM_LEAST ? RFI_SHIM_LEAST : size;
}

uint64_t rfi_shim_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}
