/* Bootstraps and the control plane, between real processes and between threads. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/control.h"
#include "core/group.h"
#include "core/hash.h"
#include "core/socket.h"
#include "../ranks.h"

#define TIMEOUT 5000

/* One name per test and test process: runs beside each other do not meet. */
static char job[64];

static int new_job(void **state)
{
    (void)state;
    static int n;
    snprintf(job, sizeof job, "test_control %d %d", (int)getpid(), n++);
    return 0;
}

static rf_bootstrap seats[RF_MAX_WORLD]; /* of tests with threads */

static int new_seats(void **state)
{
    (void)state;
    return rf_bootstrap_threads(4, seats, NULL);
}

static int free_seats(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++)
        rf_bootstrap_free(&seats[r]);
    return 0;
}

static void meet(rfi_control *c, int rank, int world)
{
    rf_bootstrap boot;
    rf_error err = {0};
    RANK_CHECK(!rf_bootstrap_socket(job, rank, world, &boot, &err), "%s", err.text);
    rf_result bad = rfi_control_open(c, &boot, RF_OK, NULL, TIMEOUT, &err);
    rf_bootstrap_free(&boot);
    RANK_CHECK(!bad, "%s", err.text);
}

/* ---- collectives ---- */

static void exchange(rfi_control *c)
{
    rf_error err = {0};
    int world = c->world;
    for (int round = 0; round < 50; round++) {
        uint32_t mine = (uint32_t)(c->rank * 1000 + round), all[RF_MAX_WORLD];
        RANK_CHECK(!rfi_control_allgather(c, "numbers", &mine, all, sizeof mine, TIMEOUT, &err),
                   "%s", err.text);
        for (int r = 0; r < world; r++)
            RANK_CHECK(all[r] == (uint32_t)(r * 1000 + round), "rank %d sent %u", r, all[r]);
    }
    size_t big = 3u << 20; /* more than the sockets hold, in both directions at once */
    unsigned char *buf = calloc((size_t)world, big), *mine = malloc(big);
    memset(mine, c->rank + 1, big);
    RANK_CHECK(!rfi_control_allgather(c, "big", mine, buf, big, TIMEOUT, &err), "%s", err.text);
    for (int r = 0; r < world; r++)
        RANK_CHECK(buf[(size_t)r * big] == r + 1 && buf[(size_t)(r + 1) * big - 1] == r + 1,
                   "rank %d's bytes are not its own", r);
    memset(mine, c->rank + 7, big);
    RANK_CHECK(!rfi_control_broadcast(c, "more", mine, big, TIMEOUT, &err), "%s", err.text);
    RANK_CHECK(mine[0] == 7 && mine[big - 1] == 7, "not rank 0's bytes");
    free(buf);
    free(mine);
}

static void collectives(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    meet(&c, rank, world);
    exchange(&c);
    rfi_control_close(&c);
}

static void collectives_of_processes(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(4, collectives, NULL, NULL));
}

static void threads_exchange(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    RANK_CHECK(!rfi_control_open(&c, &seats[rank], RF_OK, NULL, TIMEOUT, &err), "%s", err.text);
    for (int r = 0; r < world; r++)
        RANK_CHECK(r == rank || c.link[r].same_process, "rank %d is in this process", r);
    exchange(&c);
    rfi_control_close(&c);
}

static void collectives_of_threads(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run_threads(4, threads_exchange, NULL, NULL));
}

static void agreeing(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0}, mine = {0};
    meet(&c, rank, world);
    RANK_CHECK(!rfi_control_agree(&c, "fine", RF_OK, NULL, TIMEOUT, &err), "%s", err.text);
    rf_result bad = RF_OK;
    if (rank == 1)
        bad = rfi_fail(&mine, RF_E_MEMORY, 1, "x", "no room for %d", 42);
    bad = rfi_control_agree(&c, "not fine", bad, &mine, TIMEOUT, &err);
    RANK_CHECK(bad == RF_E_MEMORY && err.rank == 1 && !strcmp(err.step, "not fine"), "%d: %s", bad,
               err.text);
    RANK_CHECK(!strcmp(err.text, "rank 1: no room for 42"), "%s", err.text);
    /* a verdict breaks nothing */
    RANK_CHECK(!rfi_control_agree(&c, "fine", RF_OK, NULL, TIMEOUT, &err), "%s", err.text);
    rfi_control_close(&c);
}

static void one_bad_verdict_is_everybodys(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, agreeing, NULL, NULL));
}

static void handing_over(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    meet(&c, rank, world);
    int fd = memfd_create("mine", MFD_CLOEXEC), got[RF_MAX_WORLD];
    RANK_CHECK(!ftruncate(fd, 100 + rank), "ftruncate");
    RANK_CHECK(!rfi_control_exchange_fd(&c, "fds", fd, got, TIMEOUT, &err), "%s", err.text);
    for (int r = 0; r < world; r++) {
        struct stat s = {0};
        if (r == rank)
            continue;
        RANK_CHECK(!fstat(got[r], &s) && s.st_size == 100 + r, "rank %d's file has %lld bytes", r,
                   (long long)s.st_size);
        RANK_CHECK(fcntl(got[r], F_GETFD) & FD_CLOEXEC, "an exec would leak it");
        close(got[r]);
    }
    close(fd);
    rfi_control_close(&c);
}

static void descriptors_arrive(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, handing_over, NULL, NULL));
}

/* ---- ranks at different places ---- */

static void diverging(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    uint64_t x = 0, all[RF_MAX_WORLD];
    meet(&c, rank, world);
    rf_result bad = rfi_control_allgather(&c, rank == 1 ? "close" : "prepare", &x, all, sizeof x,
                                          TIMEOUT, &err);
    RANK_CHECK(bad == RF_E_MISMATCH, "%d: %s", bad, err.text);
    RANK_CHECK(strstr(err.text, "'close'") && strstr(err.text, "'prepare'"), "%s", err.text);
    rf_error again = {0};
    bad = rfi_control_agree(&c, "later", RF_OK, NULL, TIMEOUT, &again);
    RANK_CHECK(bad == RF_E_MISMATCH && !strcmp(again.text, err.text), "%d: %s", bad, again.text);
    rank_barrier();
    rfi_control_close(&c);
}

static void different_steps_are_named_and_break_the_plane(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, diverging, NULL, NULL));
}

static void differing_sizes(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    char mine[16] = "", all[16 * RF_MAX_WORLD];
    meet(&c, rank, world);
    rf_result bad =
        rfi_control_allgather(&c, "bytes", mine, all, rank == 1 ? 16 : 8, TIMEOUT, &err);
    RANK_CHECK(bad == RF_E_MISMATCH && strstr(err.text, "to 'bytes'"), "%d: %s", bad, err.text);
    rank_barrier();
    rfi_control_close(&c);
}

static void different_sizes_are_named(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, differing_sizes, NULL, NULL));
}

static void waiting(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    uint64_t x = 0, all[RF_MAX_WORLD];
    meet(&c, rank, world);
    if (rank == 2) { /* comes when the others have given up, and is told at once */
        rank_barrier();
        rf_result bad = rfi_control_allgather(&c, "late", &x, all, sizeof x, 600000, &err);
        RANK_CHECK(bad == RF_E_TIMEOUT && strstr(err.text, "gave up"), "%d: %s", bad, err.text);
    } else {
        rf_result bad = rfi_control_allgather(&c, "late", &x, all, sizeof x, 200, &err);
        RANK_CHECK(bad == RF_E_TIMEOUT && err.rank == 2, "%d: %s", bad, err.text);
        RANK_CHECK(strstr(err.text, "rank 2 did not come to 'late' within 200 ms"), "%s", err.text);
        rank_barrier();
    }
    rank_barrier();
    rfi_control_close(&c);
}

static void a_late_rank_is_named_and_told(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, waiting, NULL, NULL));
}

static void dying(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    uint64_t x = 0, all[RF_MAX_WORLD];
    meet(&c, rank, world);
    if (rank == 1)
        kill(getpid(), SIGKILL); /* no farewell: the kernel closes its sockets */
    rf_result bad = rfi_control_allgather(&c, "alive", &x, all, sizeof x, 600000, &err);
    RANK_CHECK(bad == RF_E_PEER && err.rank == 1, "%d, rank %d: %s", bad, err.rank, err.text);
    rfi_control_close(&c);
}

static void a_dead_rank_is_named_at_once(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, dying, NULL, &(ranks_options){.may_die = 1u << 1}));
}

/* ---- strangers ---- */

/* Connects to every abstract socket of this library that it finds, and talks nonsense: what any
 * process in the network namespace can do. */
static int pester(void)
{
    FILE *f = fopen("/proc/net/unix", "re");
    char line[512];
    int n = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *name = strstr(line, "@rankfold-");
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        if (!name)
            continue;
        name[strcspn(name, "\n")] = 0;
        size_t length = strlen(name + 1);
        memcpy(at.sun_path + 1, name + 1, length);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (struct sockaddr *)&at,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)))
            n += send(fd, "\1\2\3\4\5\6\7\10\1\2\3\4\5\6\7\10\1\2\3\4\5\6\7\10", 24, MSG_NOSIGNAL) >
                 0;
        close(fd);
    }
    if (f)
        fclose(f);
    return n;
}

static int pestering_allgather(void *ctx, const void *in, void *out, size_t bytes, int timeout_ms)
{
    rf_bootstrap *inner = ctx;
    int why = inner->allgather(inner->ctx, in, out, bytes, timeout_ms);
    if (inner->rank == 0)
        pester(); /* names are known, connections are being made */
    return why;
}

static void pestered(int rank, int world, void *arg)
{
    (void)arg;
    rfi_control c;
    rf_error err = {0};
    rf_bootstrap inner;
    RANK_CHECK(!rf_bootstrap_socket(job, rank, world, &inner, &err), "%s", err.text);
    rf_bootstrap boot = {
        .ctx = &inner, .rank = rank, .world = world, .allgather = pestering_allgather};
    rf_result bad = rfi_control_open(&c, &boot, RF_OK, NULL, TIMEOUT, &err);
    RANK_CHECK(!bad, "%s", err.text);
    rf_bootstrap_free(&inner);
    exchange(&c);
    rfi_control_close(&c);
}

static void strangers_are_dropped(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, pestered, NULL, NULL));
}

/* A listener that knows its caller's name but not its token. */
static void one_without_token(int rank, int world, void *arg)
{
    (void)arg;
    (void)world;
    char name[RFI_SOCKET_NAME];
    snprintf(name, sizeof name, "rankfold-test-%d", (int)getppid());
    if (rank == 0) {
        int listener = rfi_socket_listen(name);
        RANK_CHECK(listener >= 0, "%s", strerror(-listener));
        rank_barrier();
        int fd = rfi_socket_accept(listener, UINT64_MAX);
        RANK_CHECK(fd >= 0, "%s", strerror(-fd));
        pid_t pid = 0;
        RANK_CHECK(!rfi_socket_peer(fd, &pid) && pid == rank_pid(1), "pid %d", (int)pid);
        close(fd);
        close(listener);
        rank_barrier();
    } else {
        rank_barrier();
        int fd = rfi_socket_connect(name, UINT64_MAX);
        RANK_CHECK(fd >= 0, "%s", strerror(-fd));
        pid_t pid = 0;
        RANK_CHECK(!rfi_socket_peer(fd, &pid) && pid == rank_pid(0), "pid %d", (int)pid);
        rank_barrier();
        char byte;
        RANK_CHECK(rfi_socket_recv(fd, &byte, 1, UINT64_MAX) == ECONNRESET, "no end of file");
        close(fd);
        RANK_CHECK(rfi_socket_connect(name, UINT64_MAX) == -ECONNREFUSED,
                   "name outlives its owner");
    }
}

static void the_kernel_names_the_other_end(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, one_without_token, NULL, NULL));
}

/* ---- bootstraps ---- */

static void absent(int rank, int world, void *arg)
{
    int missing = *(int *)arg;
    if (rank == missing)
        return;
    rf_bootstrap boot;
    rfi_control c;
    rf_error err = {0};
    RANK_CHECK(!rf_bootstrap_socket(job, rank, world, &boot, &err), "%s", err.text);
    rf_result bad = rfi_control_open(&c, &boot, RF_OK, NULL, 300, &err);
    rf_bootstrap_free(&boot);
    RANK_CHECK(bad == RF_E_TIMEOUT && err.rank == missing, "%d, rank %d: %s", bad, err.rank,
               err.text);
}

static void whoever_does_not_come_is_named(void **state)
{
    (void)state;
    for (int missing = 0; missing < 3; missing++)
        RANKS_ASSERT(ranks_run(3, absent, &missing, NULL));
}

static void of_another_world(int rank, int world, void *arg)
{
    const int *worlds = arg;
    (void)world;
    rf_bootstrap boot;
    rfi_control c;
    rf_error err = {0};
    RANK_CHECK(!rf_bootstrap_socket(job, rank, worlds[rank], &boot, &err), "%s", err.text);
    rf_result bad = rfi_control_open(&c, &boot, RF_OK, NULL, 20000, &err);
    rf_bootstrap_free(&boot);
    RANK_CHECK(bad == RF_E_MISMATCH && worlds[err.rank] != worlds[0], "%d, rank %d: %s", bad,
               err.rank, err.text);
    char text[64];
    snprintf(text, sizeof text, "rank %d has world = %d, rank 0 has %d", err.rank, worlds[err.rank],
             worlds[0]);
    RANK_CHECK(!strcmp(err.text, text), "%s", err.text);
}

static void another_world_size_is_a_mismatch_for_all(void **state)
{
    (void)state;
    static const int worlds[][3] = {{3, 2, 3}, {2, 3, 3}, {3, 3, 4}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        RANKS_ASSERT(ranks_run(3, of_another_world, (void *)(uintptr_t)worlds[i], NULL));
}

/* Processes 1 and 2 both say that they are rank 1; rank 2 comes when one of them was sent away. */
static void twice(int rank, int world, void *arg)
{
    static const int claimed[] = {0, 1, 1, 2};
    int *sent_away = arg;
    (void)world;
    rf_bootstrap boot;
    rfi_control c;
    rf_error err = {0};
    while (rank == 3 && !__atomic_load_n(sent_away, __ATOMIC_ACQUIRE))
        usleep(1000);
    RANK_CHECK(!rf_bootstrap_socket(job, claimed[rank], 3, &boot, &err), "%s", err.text);
    rf_result bad = rfi_control_open(&c, &boot, RF_OK, NULL, 20000, &err);
    rf_bootstrap_free(&boot);
    if (!bad) {
        rfi_control_close(&c);
        return;
    }
    RANK_CHECK(bad == RF_E_MISMATCH && claimed[rank] == 1 && err.rank == 1, "%d, rank %d: %s", bad,
               err.rank, err.text);
    RANK_CHECK(strstr(err.text, "rank 1 is here already"), "%s", err.text);
    RANK_CHECK(!__atomic_exchange_n(sent_away, 1, __ATOMIC_ACQ_REL), "both were sent away");
}

static void a_rank_that_is_there_twice_is_told_so(void **state)
{
    (void)state;
    int *sent_away = ranks_shared(sizeof *sent_away);
    const char *verdict = ranks_run(4, twice, sent_away, NULL);
    ranks_shared_free(sent_away, sizeof *sent_away);
    RANKS_ASSERT(verdict);
}

/* A process that says that it is rank 1 of 3, and dies. Whoever comes later comes after it. */
static void say_hello_and_die(void)
{
    const uint32_t hello[] = {0x72666231u, 1, 3, 0};
    unsigned char hash[16];
    char hex[RFI_HEX], name[RFI_SOCKET_NAME];
    rfi_hash128(job, strlen(job), hash);
    rfi_hex(hash, hex);
    snprintf(name, sizeof name, "rankfold-%u-%s", (unsigned)geteuid(), hex);
    int fd;
    while ((fd = rfi_socket_connect(name, UINT64_MAX)) < 0)
        usleep(1000); /* nobody listens yet */
    int why = rfi_socket_send(fd, hello, sizeof hello, UINT64_MAX);
    RANK_CHECK(!why, "%s", strerror(why));
    close(fd);
}

static void started_again(int rank, int world, void *arg)
{
    int *died = arg;
    rfi_control c;
    if (rank == 1) {
        say_hello_and_die();
        __atomic_store_n(died, 1, __ATOMIC_RELEASE);
    }
    while (rank == 2 && !__atomic_load_n(died, __ATOMIC_ACQUIRE))
        usleep(1000);
    if (rank == 2) /* rank 0 still waits when rank 1 comes again */
        usleep(200000);
    meet(&c, rank, world);
    rfi_control_close(&c);
}

static void a_rank_that_was_started_again_takes_its_place(void **state)
{
    (void)state;
    const char *verdict = "";
    for (int i = 0; verdict && i < 5; i++) { /* where rank 1 came too late after all */
        int *died = ranks_shared(sizeof *died);
        new_job(state);
        verdict = ranks_run(3, started_again, died, NULL);
        ranks_shared_free(died, sizeof *died);
    }
    RANKS_ASSERT(verdict);
}

/* One rank says less than this version does. */
static void of_another_version(int rank, int world, void *arg)
{
    rf_bootstrap boot;
    rfi_control c;
    rf_error err = {0};
    uint64_t in = 0, out[2];
    RANK_CHECK(!rf_bootstrap_socket(job, rank, world, &boot, &err), "%s", err.text);
    if (rank == *(int *)arg) {
        int why = boot.allgather(boot.ctx, &in, out, sizeof in, 20000);
        RANK_CHECK(why == EPROTO, "%s", strerror(why));
    } else {
        rf_result bad = rfi_control_open(&c, &boot, RF_OK, NULL, 20000, &err);
        RANK_CHECK(bad == RF_E_MISMATCH && strstr(err.text, "another version"), "%d: %s", bad,
                   err.text);
    }
    rf_bootstrap_free(&boot);
}

static void another_version_is_a_mismatch(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++)
        RANKS_ASSERT(ranks_run(2, of_another_version, &other, NULL));
}

static void absent_thread(int rank, int world, void *arg)
{
    (void)world;
    (void)arg;
    if (rank == 3)
        return;
    rfi_control c;
    rf_error err = {0};
    rf_result bad = rfi_control_open(&c, &seats[rank], RF_OK, NULL, 200, &err);
    RANK_CHECK(bad == RF_E_TIMEOUT && err.rank == 3, "%d, rank %d: %s", bad, err.rank, err.text);
}

static void a_thread_that_does_not_come_is_named(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run_threads(4, absent_thread, NULL, NULL));
}

static int broken_allgather(void *ctx, const void *in, void *out, size_t bytes, int timeout_ms)
{
    (void)ctx, (void)in, (void)out, (void)bytes, (void)timeout_ms;
    return ETIMEDOUT;
}

static int lying_allgather(void *ctx, const void *in, void *out, size_t bytes, int timeout_ms)
{
    (void)ctx, (void)in, (void)timeout_ms;
    memset(out, 0xa5, 2 * bytes);
    return 0;
}

static void a_callback_that_fails_or_lies_is_an_error(void **state)
{
    (void)state;
    rfi_control c;
    rf_error err = {0};
    rf_bootstrap boot = {.rank = 0, .world = 2, .allgather = broken_allgather};
    assert_int_equal(rfi_control_open(&c, &boot, RF_OK, NULL, 10, &err), RF_E_TIMEOUT);
    assert_non_null(strstr(err.text, "unknown rank"));
    assert_int_equal(err.rank, -1);
    boot.allgather = lying_allgather;
    assert_int_equal(rfi_control_open(&c, &boot, RF_OK, NULL, 10, &err), RF_E_MISMATCH);
}

static void wrong_bootstrap_arguments_are_refused(void **state)
{
    (void)state;
    rf_bootstrap boot;
    assert_int_equal(rf_bootstrap_socket(NULL, 0, 2, &boot, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_socket("", 0, 2, &boot, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_socket("x", 2, 2, &boot, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_socket("x", -1, 2, &boot, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_socket("x", 0, 9, &boot, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_socket("x", 0, 2, NULL, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_threads(0, &boot, NULL), RF_E_ARG);
    assert_int_equal(rf_bootstrap_threads(1, NULL, NULL), RF_E_ARG);
    rf_bootstrap_free(NULL);
}

#define test(f)         cmocka_unit_test_setup(f, new_job)
#define test_threads(f) cmocka_unit_test_setup_teardown(f, new_seats, free_seats)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(collectives_of_processes),
        test_threads(collectives_of_threads),
        test(one_bad_verdict_is_everybodys),
        test(descriptors_arrive),
        test(different_steps_are_named_and_break_the_plane),
        test(different_sizes_are_named),
        test(a_late_rank_is_named_and_told),
        test(a_dead_rank_is_named_at_once),
        test(strangers_are_dropped),
        test(the_kernel_names_the_other_end),
        test(whoever_does_not_come_is_named),
        test(another_world_size_is_a_mismatch_for_all),
        test(a_rank_that_is_there_twice_is_told_so),
        test(a_rank_that_was_started_again_takes_its_place),
        test(another_version_is_a_mismatch),
        test_threads(a_thread_that_does_not_come_is_named),
        test(a_callback_that_fails_or_lies_is_an_error),
        test(wrong_bootstrap_arguments_are_refused),
    };
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
