#include <math.h>
#include <stdlib.h>

#include "tune/stats.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest rank: always a value that was measured. */
static double quantile(const double *sorted, size_t n, unsigned percent)
{
    size_t rank = (n * percent + 99) / 100;
    return sorted[rank ? rank - 1 : 0];
}

static double middle(const double *sorted, size_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The median of |x - median|, without a second array: both ends of the sorted samples are the
 * farthest, so the deviations are merged from outside in until half of them are used up. */
static double deviation(const double *sorted, size_t n, double median)
{
    size_t low = 0, high = n - 1;
    double last = 0;
    for (size_t left = n - n / 2; left > 0; left--) {
        double below = fabs(median - sorted[low]), above = fabs(sorted[high] - median);
        if (below > above)
            last = below, low++;
        else
            last = above, high--;
    }
    return last;
}

rfi_stats rfi_stats_of(double *samples, size_t n)
{
    if (n == 0)
        return (rfi_stats){0};
    qsort(samples, n, sizeof *samples, ascending);
    double median = middle(samples, n);
    return (rfi_stats){
        .n = n,
        .min = samples[0],
        .p10 = quantile(samples, n, 10),
        .median = median,
        .p90 = quantile(samples, n, 90),
        .max = samples[n - 1],
        .mad = deviation(samples, n, median),
    };
}
