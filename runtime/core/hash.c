#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "core/hash.h"

void rfi_hash128(const void *data, size_t bytes, unsigned char out[16])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
    memcpy(out, canonical.digest, 16);
}

uint64_t rfi_hash64(const void *data, size_t bytes)
{
    unsigned char hash[16];
    uint64_t value = 0;
    rfi_hash128(data, bytes, hash);
    for (int i = 0; i < 8; i++)
        value = value << 8 | hash[i];
    return value;
}

void rfi_hex(const unsigned char hash[16], char out[RFI_HEX])
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[2 * i] = digit[hash[i] >> 4];
        out[2 * i + 1] = digit[hash[i] & 15];
    }
    out[32] = 0;
}
