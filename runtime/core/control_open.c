/* How the ranks meet: facts through the bootstrap, a full mesh of connections, a verdict through
 * the bootstrap. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bootstrap.h"
#include "core/clock.h"
#include "core/control.h"
#include "core/group.h"
#include "core/hash.h"
#include "core/socket.h"

#define MAGIC      0x72666831u /* "rfh1" */
#define CONNECT_MS 10000
#define HELLO_MS   1000 /* how long one connection may keep a rank from accepting the next */

/* What a rank says about itself. Fixed size, no padding; texts are terminated. */
typedef struct facts {
    uint32_t magic, abi, version, rank, world, uid;
    int32_t code; /* the rank's verdict so far */
    uint32_t unused;
    uint64_t net_namespace, ipc_namespace; /* inode numbers; 0 = unknown */
    char boot_id[40];
    char name[RFI_SOCKET_NAME]; /* its control socket */
    unsigned char token[RFI_TOKEN];
    char text[240];
} facts;

/* What a rank says once the connections stand, or fail. */
typedef struct verdict {
    int32_t code, blame;
    char text[248];
} verdict;

typedef struct handshake {
    uint32_t magic, rank;
    unsigned char token[RFI_TOKEN]; /* the receiver's */
} handshake;

static void read_line(const char *path, char *buf, size_t size)
{
    FILE *f = fopen(path, "re");
    buf[0] = 0;
    if (!f)
        return;
    if (!fgets(buf, (int)size, f))
        buf[0] = 0;
    buf[strcspn(buf, "\n")] = 0;
    fclose(f);
}

static uint64_t inode_of(const char *path)
{
    struct stat s;
    return stat(path, &s) ? 0 : (uint64_t)s.st_ino;
}

/* ---- step 1: facts ---- */

static rf_result listen_somewhere(facts *f, int *listener, rf_error *err)
{
    unsigned char random[16];
    char hex[RFI_HEX];
    int why = rfi_random(random, sizeof random);
    if (!why)
        why = rfi_random(f->token, sizeof f->token);
    if (why)
        return rfi_fail(err, RF_E_SYSTEM, (int)f->rank, "bootstrap", "getrandom: %s",
                        strerror(why));
    rfi_hex(random, hex);
    snprintf(f->name, sizeof f->name, "rankfold-%s", hex);
    *listener = rfi_socket_listen(f->name);
    if (*listener < 0) {
        why = -*listener;
        *listener = -1;
        return rfi_fail(err, RF_E_SYSTEM, (int)f->rank, "bootstrap",
                        "cannot listen on an abstract Unix socket: %s", strerror(why));
    }
    return RF_OK;
}

static void state_facts(facts *f, int rank, int world)
{
    memset(f, 0, sizeof *f);
    f->magic = MAGIC;
    f->abi = RF_ABI;
    f->version = RF_VERSION_NUMBER;
    f->rank = (uint32_t)rank;
    f->world = (uint32_t)world;
    f->uid = (uint32_t)geteuid();
    f->net_namespace = inode_of("/proc/self/ns/net");
    f->ipc_namespace = inode_of("/proc/self/ns/ipc");
    read_line("/proc/sys/kernel/random/boot_id", f->boot_id, sizeof f->boot_id);
}

static rf_result check_facts(const facts *f, const facts *first, int rank, rf_error *err)
{
    if (f->magic != MAGIC || f->rank != (uint32_t)rank)
        return rfi_fail(err, RF_E_MISMATCH, rank, "bootstrap",
                        "the bootstrap delivered something else than rank %d's facts", rank);
    if (f->abi != RF_ABI || f->version != first->version)
        return rfi_fail(err, RF_E_MISMATCH, rank, "identity",
                        "rank %d runs version %u (abi %u), rank 0 version %u (abi %u)", rank,
                        f->version, f->abi, first->version, first->abi);
    if (f->world != first->world)
        return rfi_fail(err, RF_E_MISMATCH, rank, "identity",
                        "rank %d has world = %u, rank 0 has %u", rank, f->world, first->world);
    if (strncmp(f->boot_id, first->boot_id, sizeof f->boot_id))
        return rfi_fail(err, RF_E_MISMATCH, rank, "identity",
                        "rank %d runs on another machine than rank 0 (their boot ids differ)",
                        rank);
    if (f->uid != first->uid)
        return rfi_fail(err, RF_E_MISMATCH, rank, "identity",
                        "rank %d runs as user %u, rank 0 as %u", rank, f->uid, first->uid);
    if (f->net_namespace != first->net_namespace && f->net_namespace && first->net_namespace)
        return rfi_fail(
            err, RF_E_MISMATCH, rank, "identity",
            "rank %d lives in another network namespace than rank 0 (inode %llu, %llu); "
            "abstract Unix sockets do not cross network namespaces",
            rank, (unsigned long long)f->net_namespace, (unsigned long long)first->net_namespace);
    if (f->code)
        return rfi_fail(err, f->code >= 10 ? (rf_result)f->code : RF_E_REMOTE, rank, "arguments",
                        "rank %d: %.*s", rank, (int)strnlen(f->text, sizeof f->text), f->text);
    return RF_OK;
}

static void name_missing(uint32_t mask, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int r = 0; r < RF_MAX_WORLD && used < size; r++)
        if (mask >> r & 1)
            used += (size_t)snprintf(buf + used, size - used, "%srank %d", used ? ", " : "", r);
    if (!mask)
        snprintf(buf, size, "unknown rank");
}

/* Why a ready-made bootstrap failed, said of the ranks to blame. */
static const struct {
    int why;
    rf_result code;
    const char *text;
} causes[] = {
    {ECONNRESET, RF_E_PEER, "left while the ranks were meeting"},
    {EPERM, RF_E_MISMATCH, "is a process of another user"},
    {EEXIST, RF_E_MISMATCH, "is here already: two processes have this rank, or two jobs this name"},
    {EPROTO, RF_E_MISMATCH,
     "meets as this version does not: another version, or another program of this name"},
};
#define N_CAUSES (sizeof causes / sizeof *causes)

static rf_result allgather(const rf_bootstrap *boot, const void *in, void *out, size_t bytes,
                           uint32_t timeout_ms, rf_error *err)
{
    int why = boot->allgather(boot->ctx, in, out, bytes, (int)timeout_ms);
    if (!why)
        return RF_OK;
    char who[128];
    const rfi_bootstrap_state *state = rfi_bootstrap_state_of(boot);
    uint32_t missing = state ? state->missing : 0;
    if (why == EPROTO && state && state->other_world)
        return rfi_fail(err, RF_E_MISMATCH, (int)state->other_rank, "identity",
                        "rank %u has world = %u, rank 0 has %u", state->other_rank,
                        state->other_world, state->first_world);
    int blame = missing ? __builtin_ctz(missing) : -1;
    name_missing(missing, who, sizeof who);
    if (why == ETIMEDOUT)
        return rfi_fail(err, RF_E_TIMEOUT, blame, "bootstrap", "%s did not arrive within %u ms",
                        who, timeout_ms);
    for (size_t i = 0; state && i < N_CAUSES; i++)
        if (why == causes[i].why)
            return rfi_fail(err, causes[i].code, blame, "bootstrap", "%s %s", who, causes[i].text);
    if (why == EADDRINUSE)
        return rfi_fail(err, RF_E_SYSTEM, blame, "bootstrap",
                        "another group has been meeting under this name for %u ms, or there are "
                        "two ranks 0",
                        timeout_ms);
    return rfi_fail(err, RF_E_SYSTEM, blame, "bootstrap", "allgather (%s): %s", who, strerror(why));
}

/* ---- step 2: connections. Lower ranks are called, higher ranks call. ---- */

static rf_result refuse(rf_error *err, int rank, const facts *me, const facts *them, int why)
{
    if (why == ECONNREFUSED && them->net_namespace == me->net_namespace && me->net_namespace)
        return rfi_fail(err, RF_E_PEER, rank, "connect", "rank %d gave up before rank %u connected",
                        rank, me->rank);
    if (why == ECONNREFUSED)
        return rfi_fail(err, RF_E_SYSTEM, rank, "connect",
                        "rank %d's control socket cannot be reached from rank %u; abstract Unix "
                        "sockets do not cross network namespaces (inode %llu there, %llu here)",
                        rank, me->rank, (unsigned long long)them->net_namespace,
                        (unsigned long long)me->net_namespace);
    if (why == ETIMEDOUT)
        return rfi_fail(err, RF_E_TIMEOUT, rank, "connect",
                        "rank %d did not answer on its control socket", rank);
    if (why == EPERM)
        return rfi_fail(err, RF_E_MISMATCH, rank, "connect",
                        "rank %d's control socket belongs to another user", rank);
    if (why == ECONNRESET)
        return rfi_fail(err, RF_E_PEER, rank, "connect", "rank %d left while connecting", rank);
    return rfi_fail(err, RF_E_SYSTEM, rank, "connect", "control socket of rank %d: %s", rank,
                    strerror(why));
}

static int call(rfi_control *c, int rank, const facts *all, uint64_t deadline)
{
    int fd = rfi_socket_connect(all[rank].name, deadline);
    if (fd < 0)
        return -fd;
    handshake h = {.magic = MAGIC, .rank = (uint32_t)c->rank};
    memcpy(h.token, all[rank].token, sizeof h.token);
    c->link[rank].fd = fd;
    int why = rfi_socket_peer(fd, NULL);
    return why ? why : rfi_socket_send(fd, &h, sizeof h, deadline);
}

static int same_token(const unsigned char *a, const unsigned char *b)
{
    unsigned char differ = 0;
    for (int i = 0; i < RFI_TOKEN; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

/* Takes one connection; strangers and the clumsy are dropped without a word. */
static int answer(rfi_control *c, int listener, const facts *all, uint64_t deadline)
{
    int fd = rfi_socket_accept(listener, deadline);
    if (fd < 0)
        return -fd;
    uint64_t soon = rfi_deadline(HELLO_MS);
    handshake h;
    int why = rfi_socket_recv(fd, &h, sizeof h, soon < deadline ? soon : deadline);
    int fits = !why && h.magic == MAGIC && h.rank > (uint32_t)c->rank &&
               h.rank < (uint32_t)c->world && c->link[h.rank].fd < 0 &&
               same_token(h.token, all[c->rank].token);
    handshake reply = {.magic = MAGIC, .rank = (uint32_t)c->rank};
    if (fits) {
        memcpy(reply.token, all[h.rank].token, sizeof reply.token);
        fits = !rfi_socket_send(fd, &reply, sizeof reply, deadline);
    }
    if (fits)
        c->link[h.rank].fd = fd;
    else
        rfi_socket_close(&fd);
    return 0;
}

static int hear(rfi_control *c, int rank, const facts *all, uint64_t deadline)
{
    handshake h;
    int why = rfi_socket_recv(c->link[rank].fd, &h, sizeof h, deadline);
    if (why)
        return why;
    int fits =
        h.magic == MAGIC && h.rank == (uint32_t)rank && same_token(h.token, all[c->rank].token);
    return fits ? 0 : EPERM;
}

static int missing_caller(const rfi_control *c)
{
    for (int r = c->rank + 1; r < c->world; r++)
        if (c->link[r].fd < 0)
            return r;
    return -1;
}

static rf_result connect_all(rfi_control *c, int listener, const facts *all, uint64_t deadline,
                             rf_error *err)
{
    const facts *me = &all[c->rank];
    int why;
    for (int r = 0; r < c->rank; r++)
        if ((why = call(c, r, all, deadline)))
            return refuse(err, r, me, &all[r], why);
    for (int r; (r = missing_caller(c)) >= 0;)
        if ((why = answer(c, listener, all, deadline)))
            return refuse(err, r, me, &all[r], why);
    for (int r = 0; r < c->rank; r++)
        if ((why = hear(c, r, all, deadline)))
            return refuse(err, r, me, &all[r], why);
    for (int r = 0; r < c->world; r++) {
        pid_t pid = 0;
        if (r != c->rank && !rfi_socket_peer(c->link[r].fd, &pid))
            c->link[r].same_process = pid == getpid();
    }
    return RF_OK;
}

/* ---- step 3: verdict ---- */

/* A rank that merely waited in vain, or saw another leave, knows less than the one that failed. */
static int insight(const verdict *v)
{
    return v->code == RF_OK ? 0 : v->code == RF_E_TIMEOUT ? 1 : v->code == RF_E_PEER ? 2 : 3;
}

static rf_result judge(const verdict *all, int world, rf_error *err)
{
    int worst = -1;
    for (int r = 0; r < world; r++)
        if (insight(&all[r]) > (worst < 0 ? 0 : insight(&all[worst])))
            worst = r;
    if (worst < 0)
        return RF_OK;
    const verdict *v = &all[worst];
    return rfi_fail(err, v->code >= 10 ? (rf_result)v->code : RF_E_REMOTE,
                    v->blame >= 0 && v->blame < world ? v->blame : worst, "connect",
                    "rank %d: %.*s", worst, (int)strnlen(v->text, sizeof v->text), v->text);
}

static rf_result meet(rfi_control *c, const rf_bootstrap *boot, int *listener, rf_result mine,
                      const rf_error *mine_err, uint32_t timeout_ms, rf_error *err)
{
    facts own, all[RF_MAX_WORLD];
    rf_error local = {.text = ""};
    state_facts(&own, c->rank, c->world);
    if (!mine) {
        mine = listen_somewhere(&own, listener, &local);
        mine_err = &local;
    }
    own.code = (int32_t)mine;
    if (mine)
        snprintf(own.text, sizeof own.text, "%.*s", (int)sizeof own.text - 1, mine_err->text);
    rf_result bad = allgather(boot, &own, all, sizeof own, timeout_ms, err);
    for (int r = 0; r < c->world && !bad; r++)
        bad = check_facts(&all[r], &all[0], r, err);
    if (bad)
        return bad;

    verdict said = {.code = RF_OK}, heard[RF_MAX_WORLD];
    for (int r = 0; r < c->world; r++)
        all[r].name[sizeof all[r].name - 1] = 0;
    /* Everybody is here, so this takes no time; half of it leaves the other half for the verdict.
     */
    uint32_t soon = timeout_ms / 2 < CONNECT_MS ? timeout_ms / 2 : CONNECT_MS;
    said.code = (int32_t)connect_all(c, *listener, all, rfi_deadline(soon), &local);
    said.blame = local.rank;
    if (said.code) {
        snprintf(said.text, sizeof said.text, "%.*s", (int)sizeof said.text - 1, local.text);
        rfi_socket_close(listener); /* whoever waits for our answer sees the end at once */
        rfi_control_close(c);
    }
    for (int r = 0; r < c->world; r++)
        memcpy(c->token[r], all[r].token, RFI_TOKEN);
    bad = allgather(boot, &said, heard, sizeof said, timeout_ms, err);
    return bad ? bad : judge(heard, c->world, err);
}

rf_result rfi_control_open(rfi_control *c, const rf_bootstrap *boot, rf_result mine,
                           const rf_error *mine_err, uint32_t timeout_ms, rf_error *err)
{
    memset(c, 0, sizeof *c);
    c->rank = boot->rank;
    c->world = boot->world;
    for (int r = 0; r < RF_MAX_WORLD; r++)
        c->link[r].fd = -1;
    if (c->world == 1) {
        if (mine && err)
            *err = *mine_err;
        return mine;
    }
    int listener = -1;
    rf_result result = meet(c, boot, &listener, mine, mine_err, timeout_ms, err);
    rfi_socket_close(&listener);
    if (result)
        rfi_control_close(c);
    return result;
}
