/* Bootstrap for ranks that are threads of one process: a barrier around one shared buffer. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi.h"
#include "core/bootstrap.h"
#include "core/clock.h"
#include "core/group.h"

typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world, users;
    uint32_t present; /* bit per rank that is in the current round */
    uint32_t missing; /* set once by the first rank that gave up: all fail alike */
    uint32_t leaving; /* bit per rank that has yet to copy the round's result out */
    size_t bytes, room;
    unsigned char *buffer;
} meeting;

typedef struct seat {
    rfi_bootstrap_state state;
    meeting *meeting;
    int rank;
} seat;

/* Waits on `changed`; 0 or ETIMEDOUT. */
static int wait_until(meeting *m, uint64_t deadline)
{
    struct timespec at = {.tv_sec = (time_t)(deadline / 1000000000u),
                          .tv_nsec = (long)(deadline % 1000000000u)};
    return pthread_cond_timedwait(&m->changed, &m->lock, &at);
}

static int give_up(seat *s, uint32_t missing)
{
    if (!s->meeting->missing)
        s->meeting->missing = missing;
    s->state.missing = s->meeting->missing;
    pthread_cond_broadcast(&s->meeting->changed);
    return ETIMEDOUT;
}

static int join_round(seat *s, const void *in, void *out, size_t bytes, uint64_t deadline)
{
    meeting *m = s->meeting;
    uint32_t all = (1u << m->world) - 1, me = 1u << s->rank;
    while (m->leaving && !m->missing) /* somebody still reads the round before */
        if (wait_until(m, deadline) == ETIMEDOUT)
            return give_up(s, m->leaving);
    if (m->missing)
        return give_up(s, m->missing);
    if (!m->present && bytes * (size_t)m->world > m->room) {
        unsigned char *more = realloc(m->buffer, bytes * (size_t)m->world);
        if (!more)
            return ENOMEM;
        m->buffer = more;
        m->room = bytes * (size_t)m->world;
    }
    if (m->present && m->bytes != bytes)
        return EINVAL;
    if (m->present & me)
        return EEXIST;
    m->bytes = bytes;
    memcpy(m->buffer + (size_t)s->rank * bytes, in, bytes);
    m->present |= me;
    if (m->present == all) {
        m->leaving = all;
        pthread_cond_broadcast(&m->changed);
    }
    while (!m->leaving && !m->missing)
        if (wait_until(m, deadline) == ETIMEDOUT && !m->leaving)
            return give_up(s, all & ~m->present);
    if (!m->leaving)
        return give_up(s, m->missing);
    memcpy(out, m->buffer, bytes * (size_t)m->world);
    m->leaving &= ~me;
    if (!m->leaving) {
        m->present = 0;
        pthread_cond_broadcast(&m->changed);
    }
    return 0;
}

int rfi_bootstrap_threads_allgather(void *ctx, const void *in, void *out, size_t bytes,
                                    int timeout_ms)
{
    seat *s = ctx;
    uint64_t deadline = rfi_deadline((uint32_t)timeout_ms);
    pthread_mutex_lock(&s->meeting->lock);
    int why = join_round(s, in, out, bytes, deadline);
    pthread_mutex_unlock(&s->meeting->lock);
    return why;
}

static void free_meeting(meeting *m)
{
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m->buffer);
    free(m);
}

static void leave(void *ctx)
{
    seat *s = ctx;
    meeting *m = s->meeting;
    pthread_mutex_lock(&m->lock);
    int last = --m->users == 0;
    pthread_mutex_unlock(&m->lock);
    free(s);
    if (last)
        free_meeting(m);
}

static meeting *new_meeting(int world)
{
    meeting *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->world = m->users = world;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

rf_result rf_bootstrap_threads(int world, rf_bootstrap *out, rf_error *err)
{
    if (world < 1 || world > RF_MAX_WORLD)
        return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "world %d: expected 1 to %d", world,
                        RF_MAX_WORLD);
    if (!out)
        return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "out is NULL");
    meeting *m = new_meeting(world);
    seat *seats[RF_MAX_WORLD] = {0};
    int made = 0;
    while (m && made < world && (seats[made] = calloc(1, sizeof **seats)))
        made++;
    if (made < world) {
        while (made)
            free(seats[--made]);
        if (m)
            free_meeting(m);
        return rfi_fail(err, RF_E_MEMORY, -1, "bootstrap", "no memory for %d seats", world);
    }
    for (int r = 0; r < world; r++) {
        *seats[r] = (seat){.meeting = m, .rank = r};
        out[r] = (rf_bootstrap){.ctx = seats[r],
                                .rank = r,
                                .world = world,
                                .allgather = rfi_bootstrap_threads_allgather,
                                .free_ctx = leave};
    }
    return RF_OK;
}
