/* Bootstrap over one abstract Unix socket that rank 0 listens on. The name is hashed together with
 * the user id, so that any text fits and users do not meet by accident. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "core/bootstrap.h"
#include "core/clock.h"
#include "core/group.h"
#include "core/hash.h"
#include "core/socket.h"

#define MAGIC      0x72666231u /* "rfb1" */
#define HELLO_MS   1000        /* how long a stranger may keep rank 0 waiting */
#define VERDICT_MS 1000        /* how much longer ranks wait for rank 0 to say who is missing */

typedef struct rendezvous {
    rfi_bootstrap_state state;
    char name[RFI_SOCKET_NAME];
    int rank, world;
    int listener;           /* rank 0 */
    int fd[RF_MAX_WORLD];   /* rank 0: by rank; others: fd[0] */
    int lost[RF_MAX_WORLD]; /* rank 0: of ranks beyond its world, who shall hear why */
    int n_lost;
} rendezvous;

typedef struct hello {
    uint32_t magic, rank, world, unused;
} hello;

/* Precedes every contribution and every answer. */
typedef struct header {
    uint32_t magic;
    int32_t why;               /* answer: errno of the round */
    rfi_bootstrap_state state; /* answer: what rank 0 knows */
    uint64_t bytes;
} header;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* ---- rank 0 ---- */

/* An earlier group of the same name may be about to leave: a taken name is retried. */
static int open_listener(rendezvous *r, uint64_t deadline)
{
    for (;;) {
        int fd = rfi_socket_listen(r->name);
        if (fd >= 0) {
            r->listener = fd;
            return 0;
        }
        if (fd != -EADDRINUSE || !rfi_left_ms(deadline))
            return -fd;
        nap();
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint32_t absent(const rendezvous *r)
{
    uint32_t mask = 0;
    for (int i = 1; i < r->world; i++)
        mask |= (uint32_t)(r->fd[i] < 0) << i;
    return mask;
}

/* A rank of this group, whatever it thinks of its size; one that has died meanwhile and was started
 * again takes its own place. 0, or errno: EPROTO = a stranger, EEXIST = that rank is here already.
 */
static int take_in(rendezvous *r, const hello *h, int fd)
{
    if (h->magic != MAGIC || h->rank == 0 || h->rank >= h->world || h->world > RF_MAX_WORLD)
        return EPROTO;
    int inside = h->rank < (uint32_t)r->world, fits = h->world == (uint32_t)r->world;
    if (inside && rfi_socket_gone(r->fd[h->rank]))
        rfi_socket_close(&r->fd[h->rank]);
    if (inside ? r->fd[h->rank] >= 0 : r->n_lost == RF_MAX_WORLD)
        return EEXIST;
    if (inside)
        r->fd[h->rank] = fd;
    else
        r->lost[r->n_lost++] = fd;
    if (!fits && !r->state.other_world) {
        r->state.other_rank = h->rank;
        r->state.other_world = h->world;
        r->state.first_world = (uint32_t)r->world;
    }
    return 0;
}

static void turn_away(const rendezvous *r, uint32_t rank, int fd, size_t bytes)
{
    header answer = {.magic = MAGIC, .why = EEXIST, .state = r->state, .bytes = bytes};
    answer.state.missing = 1u << rank;
    (void)rfi_socket_send(fd, &answer, sizeof answer, 0); /* fits into a socket that is new */
}

static int all_came(const rendezvous *r)
{
    int more = (int)r->state.other_world - r->world;
    return !absent(r) && r->n_lost >= more;
}

/* Once the ranks are known to disagree, the others have a moment to come and hear of it. */
static int gather_connections(rendezvous *r, size_t bytes, uint64_t deadline)
{
    while (!all_came(r)) {
        int fd = rfi_socket_accept(r->listener, deadline), knew = r->state.other_world != 0;
        if (fd < 0)
            return knew ? EPROTO : -fd;
        hello h;
        int why = rfi_socket_recv(fd, &h, sizeof h, earlier(deadline, rfi_deadline(HELLO_MS)));
        if (!why)
            why = take_in(r, &h, fd);
        if (why == EEXIST)
            turn_away(r, h.rank, fd, bytes);
        if (why)
            rfi_socket_close(&fd);
        if (!knew && r->state.other_world)
            deadline = earlier(deadline, rfi_deadline(VERDICT_MS));
    }
    return r->state.other_world ? EPROTO : 0;
}

static int collect(rendezvous *r, unsigned char *out, size_t bytes, uint64_t deadline)
{
    int first = 0;
    for (int i = 1; i < r->world; i++) {
        header h;
        int why = rfi_socket_recv(r->fd[i], &h, sizeof h, deadline);
        if (!why && (h.magic != MAGIC || h.bytes != bytes))
            why = EPROTO;
        if (!why)
            why = rfi_socket_recv(r->fd[i], out + (size_t)i * bytes, bytes, deadline);
        if (why) {
            r->state.missing |= 1u << i;
            first = first ? first : why;
        }
    }
    return first;
}

static int serve(rendezvous *r, const void *in, unsigned char *out, size_t bytes, uint64_t deadline)
{
    int why = 0;
    if (absent(r) && r->listener < 0)
        why = open_listener(r, deadline);
    if (why)
        return why;
    why = gather_connections(r, bytes, deadline);
    r->state.missing = absent(r);
    /* The name is free again before anybody can be done: who comes now belongs to the next group of
     * this name, and would be lost with this one. */
    if (!why)
        rfi_socket_close(&r->listener);
    memcpy(out, in, bytes);
    if (!why)
        why = collect(r, out, bytes, deadline);
    header answer = {.magic = MAGIC, .why = why, .state = r->state, .bytes = bytes};
    uint64_t until = rfi_deadline(VERDICT_MS);
    for (int i = 0; i < r->n_lost; i++)
        (void)rfi_socket_send(r->lost[i], &answer, sizeof answer, until);
    for (int i = 1; i < r->world; i++) {
        if (r->fd[i] < 0)
            continue;
        int lost = rfi_socket_send(r->fd[i], &answer, sizeof answer, until);
        if (!why && !lost)
            lost = rfi_socket_send(r->fd[i], out, bytes * (size_t)r->world, until);
        if (lost && !why) {
            r->state.missing |= 1u << i;
            why = answer.why = lost;
            answer.state = r->state;
        }
    }
    return why;
}

/* ---- the others ---- */

static int reach(rendezvous *r, uint64_t deadline)
{
    hello h = {.magic = MAGIC, .rank = (uint32_t)r->rank, .world = (uint32_t)r->world};
    for (;;) {
        int fd = rfi_socket_connect(r->name, deadline);
        if (fd >= 0) {
            int why = rfi_socket_peer(fd, NULL);
            if (!why)
                why = rfi_socket_send(fd, &h, sizeof h, deadline);
            if (!why) {
                r->fd[0] = fd;
                return 0;
            }
            rfi_socket_close(&fd);
            return why;
        }
        if (fd != -ECONNREFUSED) /* nobody listens yet */
            return -fd;
        if (!rfi_left_ms(deadline))
            return ETIMEDOUT;
        nap();
    }
}

static int ask(rendezvous *r, const void *in, void *out, size_t bytes, uint64_t deadline)
{
    r->state.missing = 1; /* rank 0, unless it answers */
    int why = r->fd[0] < 0 ? reach(r, deadline) : 0;
    header h = {.magic = MAGIC, .bytes = bytes};
    if (!why)
        why = rfi_socket_send(r->fd[0], &h, sizeof h, deadline);
    if (!why)
        why = rfi_socket_send(r->fd[0], in, bytes, deadline);
    deadline += (uint64_t)VERDICT_MS * 1000000u;
    if (why && why != ECONNRESET) /* who has gone may have answered before */
        return why;
    int unheard = r->fd[0] < 0 ? why : rfi_socket_recv(r->fd[0], &h, sizeof h, deadline);
    if (unheard)
        return why ? why : unheard;
    if (h.magic != MAGIC || h.bytes != bytes)
        return EPROTO;
    r->state = h.state;
    if (h.why)
        return h.why;
    return rfi_socket_recv(r->fd[0], out, bytes * (size_t)r->world, deadline);
}

int rfi_bootstrap_socket_allgather(void *ctx, const void *in, void *out, size_t bytes,
                                   int timeout_ms)
{
    rendezvous *r = ctx;
    uint64_t deadline = rfi_deadline((uint32_t)timeout_ms);
    return r->rank == 0 ? serve(r, in, out, bytes, deadline) : ask(r, in, out, bytes, deadline);
}

static void leave(void *ctx)
{
    rendezvous *r = ctx;
    rfi_socket_close(&r->listener);
    for (int i = 0; i < RF_MAX_WORLD; i++)
        rfi_socket_close(&r->fd[i]);
    for (int i = 0; i < r->n_lost; i++)
        rfi_socket_close(&r->lost[i]);
    free(r);
}

rf_result rf_bootstrap_socket(const char *name, int rank, int world, rf_bootstrap *out,
                              rf_error *err)
{
    if (!out || !name || !*name)
        return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "%s",
                        out ? "name is NULL or empty" : "out is NULL");
    if (world < 1 || world > RF_MAX_WORLD)
        return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "world %d: expected 1 to %d", world,
                        RF_MAX_WORLD);
    if (rank < 0 || rank >= world)
        return rfi_fail(err, RF_E_ARG, -1, "bootstrap", "rank %d: expected 0 to %d", rank,
                        world - 1);
    rendezvous *r = calloc(1, sizeof *r);
    if (!r)
        return rfi_fail(err, RF_E_MEMORY, rank, "bootstrap", "no memory");
    unsigned char hash[16];
    char hex[RFI_HEX];
    rfi_hash128(name, strlen(name), hash);
    rfi_hex(hash, hex);
    snprintf(r->name, sizeof r->name, "rankfold-%u-%s", (unsigned)geteuid(), hex);
    r->rank = rank;
    r->world = world;
    r->listener = -1;
    for (int i = 0; i < RF_MAX_WORLD; i++)
        r->fd[i] = -1;
    *out = (rf_bootstrap){.ctx = r,
                          .rank = rank,
                          .world = world,
                          .allgather = rfi_bootstrap_socket_allgather,
                          .free_ctx = leave};
    return RF_OK;
}
