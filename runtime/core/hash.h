/* XXH3-128 in canonical (big-endian) bytes: fingerprints, digests. */
#ifndef RANKFOLD_HASH_H
#define RANKFOLD_HASH_H

#include <stddef.h>
#include <stdint.h>

#define RFI_HEX 33 /* 16 bytes as hex, with terminator */

void rfi_hash128(const void *data, size_t bytes, unsigned char out[16]);
/* First eight bytes of the same, as a number: short digests. */
uint64_t rfi_hash64(const void *data, size_t bytes);
void rfi_hex(const unsigned char hash[16], char out[RFI_HEX]);

#endif
