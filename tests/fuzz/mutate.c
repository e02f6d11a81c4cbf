#include <string.h>

#include "mutate.h"

uint64_t mutate_next(uint64_t *state)
{
    uint64_t x = *state ? *state : 1;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

static size_t below(uint64_t *state, size_t n)
{
    return n ? (size_t)(mutate_next(state) % n) : 0;
}

void mutate(unsigned char *bytes, size_t *size, uint64_t *state)
{
    static const unsigned char odd[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '\'', '(', '\n'};
    for (size_t n = 1 + below(state, 8); n > 0 && *size > 0; n--) {
        /* Half of the accidents hit the first bytes, where the formats have their headers. */
        size_t at = below(state, mutate_next(state) % 2 ? *size : *size < 4096 ? *size : 4096);
        size_t run = 1 + below(state, 64);
        if (run > *size - at)
            run = *size - at;
        switch (below(state, 16)) {
        default:
            bytes[at] ^= (unsigned char)(1u << below(state, 8));
            break;
        case 8:
        case 9:
        case 10:
            bytes[at] = odd[below(state, sizeof odd)];
            break;
        case 11:
        case 12:
            memset(bytes + at, 0, run);
            break;
        case 13:
        case 14:
            memmove(bytes + at, bytes + below(state, *size - run + 1), run);
            break;
        case 15:
            *size = at;
        }
    }
}
