#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/clock.h"
#include "core/hash.h"
#include "tune/session.h"

#define DEFAULT_BUDGET_MS 60000u
#define DEFAULT_ROUNDS    7u
#define MAX_ROUNDS        1000u

static uint64_t digest_shapes(const rf_shape *shapes, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) {
        const rf_shape *s = &shapes[i];
        uint64_t fields[] = {h, s->op, s->dtype, s->mode, s->rows, s->hidden};
        h = rfi_hash64(fields, sizeof fields);
    }
    return h;
}

static rf_result check_shape(const rf_comm *comm, const rf_shape *s, size_t i, rf_error *err)
{
    int rank = rf_comm_rank(comm);
    uint64_t size = rf_dtype_size(s->dtype), capacity = rfi_capacity(comm);
    if (s->op != RF_ALL_REDUCE)
        return rfi_fail(err, RF_E_ARG, rank, "tune", "shape %zu: unknown operation %d", i, s->op);
    if (size == 0)
        return rfi_fail(err, RF_E_DTYPE, rank, "tune", "shape %zu: unknown dtype %d", i, s->dtype);
    if (s->mode != RF_EAGER && s->mode != RF_GRAPH)
        return rfi_fail(err, RF_E_ARG, rank, "tune", "shape %zu: unknown mode %d", i, s->mode);
    if (s->rows == 0 || s->hidden == 0)
        return rfi_fail(err, RF_E_ARG, rank, "tune", "shape %zu: %llu x %llu has no elements", i,
                        (unsigned long long)s->rows, (unsigned long long)s->hidden);
    if (s->rows > capacity / size / s->hidden)
        return rfi_fail(err, RF_E_CAPACITY, rank, "tune",
                        "shape %zu: %llu x %llu elements of %llu bytes, the comm's capacity is "
                        "%llu bytes",
                        i, (unsigned long long)s->rows, (unsigned long long)s->hidden,
                        (unsigned long long)size, (unsigned long long)capacity);
    if (!rf_supports(comm, s))
        return rfi_fail(err, RF_E_VARIANT, rank, "tune",
                        "shape %zu: no variant for %llu x %llu %s and %d ranks runs here", i,
                        (unsigned long long)s->rows, (unsigned long long)s->hidden,
                        rf_dtype_name(s->dtype), rf_comm_world(comm));
    return RF_OK;
}

/* What an earlier call has done to the comm would be blamed on the first candidate. */
static rf_result check_health(const rf_comm *comm, rf_error *err)
{
    rf_health h;
    rf_comm_check(comm, &h);
    return h.code == RF_OK ? RF_OK
                           : rfi_fail(err, RF_E_POISONED, h.culprit, "tune",
                                      "channel %d is poisoned (%s); rf_comm_reset revives it",
                                      h.channel, rf_strerror(h.code));
}

static rf_result check_arguments(rf_comm *comm, int channel, const rf_shape *shapes, size_t n,
                                 const rf_tune_options *o, rf_error *err)
{
    int rank = rf_comm_rank(comm);
    if (n > RFI_SHAPES_MAX || (n && !shapes))
        return rfi_fail(err, RF_E_ARG, rank, "tune", "%zu shapes at %p: expected at most %d", n,
                        (const void *)shapes, RFI_SHAPES_MAX);
    if (o->rounds > MAX_ROUNDS)
        return rfi_fail(err, RF_E_ARG, rank, "tune", "%u rounds, expected up to %u", o->rounds,
                        MAX_ROUNDS);
    if (o->flags & ~RF_TUNE_FORCE)
        return rfi_fail(err, RF_E_ARG, rank, "tune", "unknown flags 0x%x", o->flags);
    for (size_t i = 0; i < n; i++) {
        rf_result rc = check_shape(comm, &shapes[i], i, err);
        if (rc != RF_OK)
            return rc;
    }
    rf_result rc = rf_channel_rebind(comm, channel);
    return rc == RF_OK ? RF_OK : rfi_fail(err, rc, rank, "tune", "channel %d", channel);
}

/* Copies what the caller's (perhaps older, shorter) struct has, and fills in the defaults. */
static rf_result read_options(const rf_comm *comm, const rf_tune_options *given,
                              rf_tune_options *out, rf_error *err)
{
    rf_tune_options o = RF_TUNE_OPTIONS_INIT;
    if (given) {
        if (given->struct_size < sizeof given->struct_size || given->struct_size > sizeof o)
            return rfi_fail(err, RF_E_ARG, rf_comm_rank(comm), "tune",
                            "options.struct_size is %zu, expected %zu: start from "
                            "RF_TUNE_OPTIONS_INIT",
                            given->struct_size, sizeof o);
        memcpy(&o, given, given->struct_size);
    }
    o.budget_ms = o.budget_ms ? o.budget_ms : DEFAULT_BUDGET_MS;
    o.rounds = o.rounds ? o.rounds : DEFAULT_ROUNDS;
    *out = o;
    return RF_OK;
}

static rf_result compare(const rfi_session *s, rf_error *err)
{
    const rf_tune_options *o = &s->options;
    const char *filter = o->variant_filter;
    const rfi_term terms[] = {
        {"channel", (uint64_t)s->channel},
        {"the number of shapes", s->n},
        {"the digest of the shapes", digest_shapes(s->shapes, s->n)},
        {"the digest of options.variant_filter", filter ? rfi_hash64(filter, strlen(filter)) : 0},
        {"options.budget_ms", o->budget_ms},
        {"options.rounds", o->rounds},
        {"options.flags", o->flags},
        {"options.seed", o->seed},
    };
    return rfi_same(s->comm, "tune", terms, sizeof terms / sizeof *terms, err);
}

static uint64_t fresh_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = rfi_now_ns();
    return seed >> 1 | 1; /* a positive number in the campaign's policy */
}

rf_result rf_tune(rf_comm *comm, int channel, const rf_shape *shapes, size_t n,
                  const rf_tune_options *options, rf_tune_summary *out, rf_error *err)
{
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, "tune", "comm is NULL");
    rfi_session s = {.comm = comm, .channel = channel, .shapes = shapes, .n = n};
    rf_error why = {0};
    rf_result rc = read_options(comm, options, &s.options, &why);
    if (rc == RF_OK)
        rc = check_arguments(comm, channel, shapes, n, &s.options, &why);
    if (rc == RF_OK)
        rc = check_health(comm, &why);
    rc = rfi_agree(comm, "tune", rc, &why, rfi_timeout_ms(comm), err);
    if (rc != RF_OK)
        return rc;
    rc = compare(&s, err);
    if (rc != RF_OK)
        return rc;
    if (!s.options.seed)
        s.options.seed = fresh_seed(); /* only rank 0's is used */
    s.worker = rfi_worker_of(comm, channel);
    s.start = rfi_seconds();
    rfi_set_tuning(comm, 1);
    rc = rf_comm_rank(comm) == 0 ? rfi_session_lead(&s, err) : rfi_session_follow(&s, err);
    rfi_worker_close(&s.worker);
    rfi_set_tuning(comm, 0);
    if (rc == RF_OK && out)
        *out = s.summary;
    return rc;
}
