/* The monotonic clock, and deadlines on it. */
#ifndef RANKFOLD_CLOCK_H
#define RANKFOLD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t rfi_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t rfi_deadline(uint32_t timeout_ms)
{
    return rfi_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* Milliseconds left, rounded up, as poll() wants them; 0 = expired. */
static inline int rfi_left_ms(uint64_t deadline)
{
    uint64_t now = rfi_now_ns();
    if (now >= deadline)
        return 0;
    uint64_t ms = (deadline - now + 999999u) / 1000000u;
    return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

#endif
