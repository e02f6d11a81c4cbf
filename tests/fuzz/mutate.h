/* Seeded mutations of a byte string, for fuzz targets that run without a fuzzing engine. The same
 * seed gives the same bytes on every machine. */
#ifndef RANKFOLD_TESTS_MUTATE_H
#define RANKFOLD_TESTS_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* xorshift64*: never 0. */
uint64_t mutate_next(uint64_t *state);

/* Changes bytes[0 .. *size - 1] in place by one to eight small accidents: flipped bits, set bytes,
 * runs of zeros, copied stretches, a cut end. *size may shrink, never grow. */
void mutate(unsigned char *bytes, size_t *size, uint64_t *state);

#endif
