/* The vector of the portable net: one element. */
#ifndef RANKFOLD_CPU_SCALAR_H
#define RANKFOLD_CPU_SCALAR_H

#if defined(__x86_64__)
#define RF_TARGET __attribute__((target("prfchw")))
#else
#define RF_TARGET
#endif
#include "cpu/element.h"

typedef float rf_vector;
#define RF_LANES 1

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    rf_element e;
    __builtin_memcpy(&e, from, sizeof e);
    return element_widen(e);
}

RF_INLINE rf_vector vector_add(rf_vector a, rf_vector b)
{
    return a + b;
}

typedef rf_element rf_rounded;

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    return element_round(v);
}

/* What vector_store wrote. */
RF_INLINE rf_rounded vector_reload(const unsigned char *from)
{
    rf_rounded v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

RF_INLINE void vector_store(unsigned char *to, rf_rounded v)
{
    __builtin_memcpy(to, &v, sizeof v);
}

/* Without a streaming store there is nothing to fence. */
RF_INLINE void vector_stream(unsigned char *to, rf_rounded v)
{
    vector_store(to, v);
}

RF_INLINE void stream_fence(void) {}

#endif
