#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune/data.h"

#define GUARD  RF_LINE
#define POISON 0xA5

/* What the three formats share: sign, exponent, mantissa. */
static const struct format {
    unsigned exponent_bits, mantissa_bits;
} formats[] = {[RF_F32] = {8, 23}, [RF_BF16] = {8, 7}, [RF_F16] = {5, 10}};

/* splitmix64's finaliser: a good mix of a counter. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Magnitude between 2^-8 and 2^8: sums round, and do not overflow. */
static uint32_t ordinary(const struct format *f, uint64_t random)
{
    uint32_t bias = (1u << (f->exponent_bits - 1)) - 1;
    uint32_t exponent = bias - 8 + (uint32_t)(random & 15);
    uint32_t mantissa = (uint32_t)(random >> 8) & ((1u << f->mantissa_bits) - 1);
    return exponent << f->mantissa_bits | mantissa;
}

static uint32_t special_value(const struct format *f, uint64_t random)
{
    uint32_t mantissas = (1u << f->mantissa_bits) - 1;
    uint32_t infinity = ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
    const uint32_t values[] = {
        0,                                       /* zero */
        infinity,                                /* */
        infinity | 1u << (f->mantissa_bits - 1), /* quiet NaN */
        infinity | 1,                            /* signalling NaN */
        infinity | mantissas,                    /* with the sign: all ones */
        infinity - 1,                            /* largest number */
        1,                                       /* smallest denormal */
        mantissas,                               /* largest denormal */
        mantissas + 1,                           /* smallest normal number */
    };
    return values[random % (sizeof values / sizeof *values)];
}

static uint32_t value(const struct format *f, uint64_t random, int special)
{
    uint32_t sign = (uint32_t)(random >> 63) << (f->exponent_bits + f->mantissa_bits);
    int pick = special && (random >> 59 & 7) == 0;
    return sign | (pick ? special_value(f, random >> 8) : ordinary(f, random));
}

static void generate(const rfi_data *d, int rank, uint64_t seed, int special)
{
    const struct format *f = &formats[d->dtype];
    uint64_t base = mix(seed ^ mix((uint64_t)rank + 1));
    size_t size = rf_dtype_size(d->dtype);
    for (uint64_t i = 0; i < d->period; i++) {
        uint32_t bits = value(f, mix(base + i), special);
        uint16_t half = (uint16_t)bits;
        memcpy(d->inputs[rank] + i * size, size == 2 ? (const void *)&half : &bits, size);
    }
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + RF_LINE - 1) / RF_LINE * RF_LINE;
}

rf_result rfi_data_open(rfi_data *d, rf_dtype dtype, uint64_t count, int rank, int world,
                        rf_error *err)
{
    rfi_data new = {.dtype = dtype, .rank = rank, .world = world, .count = count};
    new.period = count < RFI_PERIOD ? count : RFI_PERIOD;
    uint64_t whole = round_up(count * rf_dtype_size(dtype)) + GUARD;
    uint64_t one = round_up(new.period *rf_dtype_size(dtype));
    uint64_t bytes = 2 * whole + (uint64_t)(world + 1) * one;
    unsigned char *next = new.block = aligned_alloc(RF_LINE, bytes);
    if (!next)
        return rfi_fail(err, RF_E_MEMORY, rank, "tune", "no memory for %llu bytes of test data",
                        (unsigned long long)bytes);
    memset(next, POISON, bytes); /* touched here, not while the clock runs */
    new.in = next, next += whole;
    new.out = next, next += whole;
    for (int r = 0; r < world; r++, next += one)
        new.inputs[r] = next;
    new.expected = next;
    new.bytes = 2 * whole;
    *d = new;
    return RF_OK;
}

void rfi_data_close(rfi_data *d)
{
    free(d->block);
    *d = (rfi_data){0};
}

/* Bytes of the piece of a repeating buffer that starts at element `i`. */
static size_t piece(const rfi_data *d, uint64_t i)
{
    uint64_t n = d->count - i < d->period ? d->count - i : d->period;
    return n * rf_dtype_size(d->dtype);
}

static void repeat(const rfi_data *d, unsigned char *to, const unsigned char *from)
{
    for (uint64_t i = 0; i < d->count; i += d->period)
        memcpy(to + i * rf_dtype_size(d->dtype), from, piece(d, i));
}

static double number(const rfi_data *d, const unsigned char *at)
{
    const struct format *f = &formats[d->dtype];
    uint32_t bits = 0;
    memcpy(&bits, at, rf_dtype_size(d->dtype)); /* little endian */
    int exponent = (int)(bits >> f->mantissa_bits & ((1u << f->exponent_bits) - 1));
    uint32_t mantissa = bits & ((1u << f->mantissa_bits) - 1);
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    double value = exponent == (1 << f->exponent_bits) - 1 ? INFINITY
                   : exponent ? ldexp((double)(mantissa | 1u << f->mantissa_bits), exponent - bias)
                              : ldexp((double)mantissa, 1 - bias);
    value = ldexp(value, -(int)f->mantissa_bits);
    return bits >> (f->exponent_bits + f->mantissa_bits) ? -value : value;
}

/* world - 1 additions, each rounded by half a unit, half a unit more for the oracle's own rounding:
 * doubled, which no wrong sum comes near. */
static int is_near(const rfi_data *d, const unsigned char *found, uint64_t i)
{
    size_t at = i % d->period * rf_dtype_size(d->dtype);
    double magnitude = 0;
    for (int r = 0; r < d->world; r++)
        magnitude += fabs(number(d, d->inputs[r] + at));
    double bound = ldexp(magnitude * d->world, -(int)formats[d->dtype].mantissa_bits);
    return fabs(number(d, found) - number(d, d->expected + at)) <= bound;
}

static uint64_t first_difference(const rfi_data *d, const unsigned char *found,
                                 const unsigned char *expected, int rounded)
{
    size_t size = rf_dtype_size(d->dtype);
    for (uint64_t i = 0; i < d->count; i += d->period) {
        const unsigned char *f = found + i * size;
        if (memcmp(f, expected, piece(d, i)) == 0)
            continue;
        for (uint64_t k = 0; k < piece(d, i) / size; k++)
            if (memcmp(f + k * size, expected + k * size, size) &&
                !(rounded && is_near(d, f + k * size, i + k)))
                return i + k;
    }
    return d->count;
}

void rfi_data_fill(rfi_data *d, uint64_t seed, int special, const uint8_t *order)
{
    const void *in[RF_MAX_WORLD];
    for (int r = 0; r < d->world; r++) {
        generate(d, r, seed, special);
        in[r] = d->inputs[r];
    }
    if (order)
        rf_oracle_islands(in, d->expected, d->period, d->dtype, d->world, order);
    else
        rf_oracle_all_reduce(in, d->expected, d->period, d->dtype, d->world);
    repeat(d, d->in, d->inputs[d->rank]);
    memset(d->out, POISON, d->count * rf_dtype_size(d->dtype) + GUARD);
}

rfi_verdict rfi_data_judge(const rfi_data *d, int in_place, int rounded, uint64_t *index)
{
    const unsigned char *end = d->out + d->count * rf_dtype_size(d->dtype);
    *index = first_difference(d, d->out, d->expected, rounded);
    if (*index < d->count)
        return RFI_DATA_WRONG;
    for (size_t i = 0; i < GUARD; i++)
        if (end[i] != POISON)
            return RFI_DATA_BEYOND;
    if (in_place)
        return RFI_DATA_RIGHT;
    *index = first_difference(d, d->in, d->inputs[d->rank], 0);
    return *index < d->count ? RFI_DATA_INPUT : RFI_DATA_RIGHT;
}
