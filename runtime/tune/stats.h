/* Order statistics of a few samples. */
#ifndef RANKFOLD_STATS_H
#define RANKFOLD_STATS_H

#include <stddef.h>

typedef struct rfi_stats {
    size_t n;
    double min, p10, median, p90, max;
    double mad; /* median absolute deviation from the median */
} rfi_stats;

/* Sorts `samples` in place; all zero for n = 0. */
rfi_stats rfi_stats_of(double *samples, size_t n);

#endif
