#ifndef RANKFOLD_CPU_VECTOR_H
#define RANKFOLD_CPU_VECTOR_H

#define RF_TARGET
#define RF_INLINE static inline __attribute__((always_inline)) RF_TARGET

typedef float rf_element;
typedef float rf_vector;
#define RF_LANES 1

RF_INLINE rf_vector vector_load(const rf_element *from)
{
    return *from;
}

RF_INLINE rf_vector vector_add(rf_vector a, rf_vector b)
{
    return a + b;
}

RF_INLINE void vector_store(rf_element *to, rf_vector v)
{
    union {
        float f;
        uint32_t u;
    } x = {v};
    if (v != v) {
        x.u = 0x7fffffffu;
    }
    *to = x.f;
}

#endif
