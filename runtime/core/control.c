/* Collectives over the connections. See control.h; control_open.c makes them. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/control.h"
#include "core/group.h"
#include "core/socket.h"

#define MAGIC 0x72666331u /* "rfc1" */

/* What the sockets carry: frames of one collective, or the word that the sender gave up (payload:
 * its error). */
typedef enum frame_kind { FRAME_DATA = 1, FRAME_GAVE_UP = 2 } frame_kind;

typedef struct frame {
    uint32_t magic, kind;
    uint64_t sequence, bytes;
    char step[RFI_STEP];
} frame;

typedef struct goodbye {
    int32_t code, rank;
    char text[RF_ERROR_TEXT];
} goodbye;

/* One direction of one connection. */
typedef struct half {
    size_t head, body; /* bytes done */
    int wanted, done;
} half;

typedef struct transfer {
    const char *step;
    frame mine;
    const unsigned char *out; /* payload to everyone we send to */
    unsigned char *in;        /* rank r's payload goes to in + r * stride */
    size_t bytes, stride;
    frame theirs[RF_MAX_WORLD];
    half send[RF_MAX_WORLD], recv[RF_MAX_WORLD];
    int fd;   /* travels with the first byte; -1 = none */
    int *fds; /* where descriptors go; NULL = none expected */
} transfer;

/* ---- failing ---- */

static void tell_peers(const rfi_control *c)
{
    struct {
        frame head;
        goodbye body;
    } note;
    memset(&note, 0, sizeof note);
    note.head = (frame){.magic = MAGIC, .kind = FRAME_GAVE_UP, .bytes = sizeof note.body};
    note.body.code = (int32_t)c->broken.code;
    note.body.rank = c->broken.rank;
    memcpy(note.body.text, c->broken.text, sizeof note.body.text);
    for (int r = 0; r < c->world; r++) /* one try: a full socket is not worth waiting for */
        if (c->link[r].fd >= 0)
            (void)send(c->link[r].fd, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static rf_result give_up(rfi_control *c, rf_error *err)
{
    if (err)
        *err = c->broken;
    tell_peers(c);
    return c->broken.code;
}

/* "rank 2", "ranks 2, 3" */
static void name_ranks(uint32_t mask, char *buf, size_t size)
{
    int n = 0;
    size_t used = (size_t)snprintf(buf, size, "rank%s", mask & (mask - 1) ? "s" : "");
    for (int r = 0; r < RF_MAX_WORLD && used < size; r++)
        if (mask >> r & 1)
            used += (size_t)snprintf(buf + used, size - used, "%s %d", n++ ? "," : "", r);
}

static int first_rank(uint32_t mask)
{
    return mask ? __builtin_ctz(mask) : -1;
}

static rf_result lost(rfi_control *c, const char *step, int rank, int why)
{
    if (why == ECONNRESET || why == EPIPE || why == 0)
        return rfi_fail(&c->broken, RF_E_PEER, rank, step,
                        "rank %d is gone: its control socket closed during '%s'", rank, step);
    return rfi_fail(&c->broken, RF_E_SYSTEM, rank, step, "control socket of rank %d: %s", rank,
                    strerror(why));
}

static uint32_t unfinished(const transfer *t, int world)
{
    uint32_t mask = 0;
    for (int r = 0; r < world; r++)
        mask |= (uint32_t)((t->recv[r].wanted && !t->recv[r].done) ||
                           (t->send[r].wanted && !t->send[r].done))
                << r;
    return mask;
}

static rf_result too_late(rfi_control *c, const transfer *t, uint32_t timeout_ms)
{
    char who[64];
    uint32_t mask = unfinished(t, c->world);
    name_ranks(mask, who, sizeof who);
    return rfi_fail(&c->broken, RF_E_TIMEOUT, first_rank(mask), t->step,
                    "%s did not come to '%s' within %u ms", who, t->step, timeout_ms);
}

/* ---- moving bytes: each returns RF_OK when it has done what it can without waiting ---- */

static ssize_t send_first(const transfer *t, int fd, const void *data, size_t bytes)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec io = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (t->fd >= 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *head = CMSG_FIRSTHDR(&m);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &t->fd, sizeof(int));
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Keeps the first descriptor for `slot`, closes whatever else came along. */
static ssize_t recv_first(int fd, void *data, size_t bytes, int *slot)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec io = {.iov_base = data, .iov_len = bytes};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return n;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int got;
            memcpy(&got, CMSG_DATA(h) + i * sizeof(int), sizeof got);
            got = rfi_fd_aside(got);
            if (*slot < 0)
                *slot = got;
            else
                close(got);
        }
    }
    return n;
}

static rf_result peer_gave_up(rfi_control *c, const transfer *t, int r)
{
    goodbye g;
    if (t->theirs[r].bytes != sizeof g ||
        rfi_socket_recv(c->link[r].fd, &g, sizeof g, rfi_deadline(1000)))
        return lost(c, t->step, r, 0);
    g.text[sizeof g.text - 1] = 0;
    int blame = g.rank >= 0 && g.rank < c->world && g.rank != c->rank ? g.rank : r;
    rf_result code = g.code >= 10 ? (rf_result)g.code : RF_E_REMOTE;
    return rfi_fail(&c->broken, code, blame, t->step, "rank %d gave up: %s", r, g.text);
}

static rf_result check_head(rfi_control *c, const transfer *t, int r)
{
    const frame *f = &t->theirs[r];
    if (f->magic == MAGIC && f->kind == FRAME_GAVE_UP)
        return peer_gave_up(c, t, r);
    if (f->magic != MAGIC || f->kind != FRAME_DATA || !memchr(f->step, 0, sizeof f->step))
        return rfi_fail(&c->broken, RF_E_MISMATCH, r, t->step,
                        "rank %d sent something else than a frame", r);
    if (f->sequence != t->mine.sequence || strcmp(f->step, t->mine.step))
        return rfi_fail(&c->broken, RF_E_MISMATCH, r, t->step,
                        "rank %d is in '%s' (step %llu), rank %d in '%s' (step %llu)", r, f->step,
                        (unsigned long long)f->sequence, c->rank, t->mine.step,
                        (unsigned long long)t->mine.sequence);
    if (f->bytes != t->bytes)
        return rfi_fail(&c->broken, RF_E_MISMATCH, r, t->step,
                        "rank %d brings %llu bytes to '%s', rank %d brings %llu", r,
                        (unsigned long long)f->bytes, t->step, c->rank,
                        (unsigned long long)t->bytes);
    return RF_OK;
}

/* A broken pipe: what the peer said before it went explains more. Frames that this collective has
 * read already are behind us. */
static rf_result last_words(rfi_control *c, transfer *t, int r, int why)
{
    half *h = &t->recv[r];
    if (h->wanted && !h->done) {
        t->send[r].done = 1; /* the receiving side finds them, or the end */
        return RF_OK;
    }
    if (!rfi_socket_recv(c->link[r].fd, &t->theirs[r], sizeof(frame), 0) &&
        t->theirs[r].magic == MAGIC && t->theirs[r].kind == FRAME_GAVE_UP)
        return peer_gave_up(c, t, r);
    return lost(c, t->step, r, why);
}

static rf_result push(rfi_control *c, transfer *t, int r)
{
    half *h = &t->send[r];
    while (!h->done) {
        int in_head = h->head < sizeof(frame);
        const unsigned char *from =
            in_head ? (const unsigned char *)&t->mine + h->head : t->out + h->body;
        size_t left = in_head ? sizeof(frame) - h->head : t->bytes - h->body;
        ssize_t n = in_head && !h->head
                        ? send_first(t, c->link[r].fd, from, left)
                        : send(c->link[r].fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return RF_OK;
        if (n < 0)
            return last_words(c, t, r, errno);
        if (in_head)
            h->head += (size_t)n;
        else
            h->body += (size_t)n;
        h->done = h->head == sizeof(frame) && h->body == t->bytes;
    }
    return RF_OK;
}

static rf_result pull(rfi_control *c, transfer *t, int r)
{
    half *h = &t->recv[r];
    while (!h->done) {
        int in_head = h->head < sizeof(frame);
        unsigned char *to = in_head ? (unsigned char *)&t->theirs[r] + h->head
                                    : t->in + (size_t)r * t->stride + h->body;
        size_t left = in_head ? sizeof(frame) - h->head : t->bytes - h->body;
        ssize_t n = in_head && t->fds ? recv_first(c->link[r].fd, to, left, &t->fds[r])
                                      : recv(c->link[r].fd, to, left, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return RF_OK;
        if (n <= 0)
            return lost(c, t->step, r, n < 0 ? errno : 0);
        if (in_head)
            h->head += (size_t)n;
        else
            h->body += (size_t)n;
        if (in_head && h->head == sizeof(frame)) {
            rf_result bad = check_head(c, t, r);
            if (bad)
                return bad;
        }
        h->done = h->head == sizeof(frame) && h->body == t->bytes;
    }
    return RF_OK;
}

/* Has a rank whose contribution is here given up since? Then the others fail, and so do we. (A rank
 * that gives up while our last bytes are on their way cannot be helped: it is found next time.) */
static rf_result check_goodbyes(rfi_control *c, transfer *t)
{
    for (int r = 0; r < c->world; r++) {
        frame next;
        if (c->link[r].fd < 0 || recv(c->link[r].fd, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT) !=
                                     (ssize_t)sizeof next)
            continue;
        if (next.magic == MAGIC && next.kind == FRAME_GAVE_UP)
            return last_words(c, t, r, 0);
    }
    return RF_OK;
}

static rf_result run(rfi_control *c, transfer *t, uint32_t timeout_ms, rf_error *err)
{
    uint64_t deadline = rfi_deadline(timeout_ms);
    while (unfinished(t, c->world)) {
        struct pollfd polls[RF_MAX_WORLD];
        int rank_of[RF_MAX_WORLD];
        nfds_t n = 0;
        for (int r = 0; r < c->world; r++) {
            short events = 0;
            events |= t->recv[r].wanted && !t->recv[r].done ? POLLIN : 0;
            events |= t->send[r].wanted && !t->send[r].done ? POLLOUT : 0;
            if (events) {
                rank_of[n] = r;
                polls[n++] = (struct pollfd){.fd = c->link[r].fd, .events = events};
            }
        }
        int ready = poll(polls, n, rfi_left_ms(deadline));
        if (ready < 0 && errno != EINTR) {
            rfi_fail(&c->broken, RF_E_SYSTEM, c->rank, t->step, "poll: %s", strerror(errno));
            return give_up(c, err);
        }
        for (nfds_t i = 0; i < n && ready > 0; i++) {
            int r = rank_of[i];
            if (polls[i].revents & (POLLIN | POLLHUP | POLLERR) && t->recv[r].wanted &&
                pull(c, t, r))
                return give_up(c, err);
            if (polls[i].revents & (POLLOUT | POLLHUP | POLLERR) && t->send[r].wanted &&
                push(c, t, r))
                return give_up(c, err);
        }
        if (ready == 0 && !rfi_left_ms(deadline)) {
            too_late(c, t, timeout_ms);
            return give_up(c, err);
        }
    }
    return check_goodbyes(c, t) ? give_up(c, err) : RF_OK;
}

static rf_result begin(rfi_control *c, transfer *t, const char *step, size_t bytes, rf_error *err)
{
    if (c->broken.code) {
        if (err)
            *err = c->broken;
        return c->broken.code;
    }
    memset(t, 0, sizeof *t);
    t->step = step;
    t->bytes = bytes;
    t->fd = -1;
    t->mine =
        (frame){.magic = MAGIC, .kind = FRAME_DATA, .sequence = c->sequence++, .bytes = bytes};
    snprintf(t->mine.step, sizeof t->mine.step, "%s", step);
    return RF_OK;
}

rf_result rfi_control_allgather(rfi_control *c, const char *step, const void *in, void *out,
                                size_t bytes, uint32_t timeout_ms, rf_error *err)
{
    transfer t;
    rf_result bad = begin(c, &t, step, bytes, err);
    if (bad)
        return bad;
    memmove((unsigned char *)out + (size_t)c->rank * bytes, in, bytes);
    t.out = (const unsigned char *)out + (size_t)c->rank * bytes;
    t.in = out;
    t.stride = bytes;
    for (int r = 0; r < c->world; r++)
        t.send[r].wanted = t.recv[r].wanted = r != c->rank;
    return run(c, &t, timeout_ms, err);
}

rf_result rfi_control_broadcast(rfi_control *c, const char *step, void *buf, size_t bytes,
                                uint32_t timeout_ms, rf_error *err)
{
    transfer t;
    rf_result bad = begin(c, &t, step, bytes, err);
    if (bad)
        return bad;
    t.out = t.in = buf;
    if (c->rank == 0)
        for (int r = 1; r < c->world; r++)
            t.send[r].wanted = 1;
    else
        t.recv[0].wanted = 1;
    return run(c, &t, timeout_ms, err);
}

rf_result rfi_control_agree(rfi_control *c, const char *step, rf_result mine,
                            const rf_error *mine_err, uint32_t timeout_ms, rf_error *err)
{
    goodbye own, all[RF_MAX_WORLD];
    memset(&own, 0, sizeof own);
    own.code = (int32_t)mine;
    own.rank = mine && mine_err && mine_err->code == mine && mine_err->rank >= 0 ? mine_err->rank
                                                                                 : c->rank;
    if (mine)
        snprintf(own.text, sizeof own.text, "%s",
                 mine_err && mine_err->code == mine ? mine_err->text : rf_strerror(mine));
    rf_result bad = rfi_control_allgather(c, step, &own, all, sizeof own, timeout_ms, err);
    if (bad)
        return bad;
    for (int r = 0; r < c->world; r++) {
        if (!all[r].code)
            continue;
        all[r].text[sizeof all[r].text - 1] = 0;
        rf_result code = all[r].code >= 10 ? (rf_result)all[r].code : RF_E_REMOTE;
        int blame = all[r].rank >= 0 && all[r].rank < c->world ? all[r].rank : r;
        return rfi_fail(err, code, blame, step, "rank %d: %s", r, all[r].text);
    }
    return RF_OK;
}

rf_result rfi_control_exchange_fd(rfi_control *c, const char *step, int fd, int out[RF_MAX_WORLD],
                                  uint32_t timeout_ms, rf_error *err)
{
    transfer t;
    for (int r = 0; r < RF_MAX_WORLD; r++)
        out[r] = -1;
    rf_result bad = begin(c, &t, step, 0, err);
    if (bad)
        return bad;
    t.fd = fd;
    t.fds = out;
    for (int r = 0; r < c->world; r++)
        t.send[r].wanted = t.recv[r].wanted = r != c->rank && !c->link[r].same_process;
    bad = run(c, &t, timeout_ms, err);
    if (bad)
        for (int r = 0; r < c->world; r++)
            rfi_socket_close(&out[r]);
    return bad;
}

void rfi_control_shutdown(const rfi_control *c)
{
    for (int r = 0; r < c->world; r++)
        if (c->link[r].fd >= 0)
            shutdown(c->link[r].fd, SHUT_RDWR);
}

void rfi_control_close(rfi_control *c)
{
    for (int r = 0; r < RF_MAX_WORLD; r++)
        rfi_socket_close(&c->link[r].fd);
}
