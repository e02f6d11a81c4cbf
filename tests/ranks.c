#define _GNU_SOURCE
#include "ranks.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 10
#else
#define SLOWER 1
#endif
#define DEADLINE_MS 30000u
#define GRACE_MS    2000 /* for the others, once a rank has failed */

/* LeakSanitizer's check runs at exit, and ranks leave by _exit: so they ask for it. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

typedef enum outcome { RUNNING = 0, DONE, FAILED } outcome;

typedef struct record {
    _Atomic int outcome;
    char text[1000]; /* written before outcome */
} record;

/* One run, in memory shared by all. */
typedef struct run {
    int n, threads;
    rank_fn fn;
    void *arg;
    pid_t pid[RANKS_MAX];
    _Atomic uint32_t arrived, round;
    record rank[RANKS_MAX];
} run;

static _Thread_local run *self_run;
static _Thread_local int self;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void *ranks_shared(size_t bytes)
{
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) {
        perror("tests/ranks: mmap");
        abort();
    }
    return m;
}

void ranks_shared_free(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

/* ---- in a rank ---- */

static void leave(outcome o)
{
    record *mine = &self_run->rank[self];
    if (o == DONE && !self_run->threads && __lsan_do_recoverable_leak_check &&
        __lsan_do_recoverable_leak_check()) {
        snprintf(mine->text, sizeof mine->text, "leaks memory");
        o = FAILED;
    }
    atomic_store(&mine->outcome, (int)o);
    if (self_run->threads)
        pthread_exit(NULL);
    fflush(NULL);
    _exit(o == DONE ? 0 : 1);
}

void rank_fail(const char *file, int line, const char *condition, const char *format, ...)
{
    if (!self_run)
        abort(); /* RANK_CHECK outside of a rank */
    record *mine = &self_run->rank[self];
    int k = snprintf(mine->text, sizeof mine->text, "%s:%d: %s: ", file, line, condition);
    if (k > 0 && (size_t)k < sizeof mine->text) {
        va_list args;
        va_start(args, format);
        vsnprintf(mine->text + k, sizeof mine->text - (size_t)k, format, args);
        va_end(args);
    }
    leave(FAILED);
    abort(); /* not reached */
}

void rank_barrier(void)
{
    run *r = self_run;
    uint32_t round = atomic_load(&r->round);
    if (atomic_fetch_add(&r->arrived, 1) + 1 == (uint32_t)r->n) {
        atomic_store(&r->arrived, 0);
        atomic_store(&r->round, round + 1);
        return;
    }
    while (atomic_load(&r->round) == round)
        sched_yield();
}

pid_t rank_pid(int r)
{
    return self_run->pid[r];
}

typedef struct place {
    run *r;
    int rank;
} place;

static void *body(void *arg)
{
    place *p = arg;
    self_run = p->r, self = p->rank;
    self_run->fn(self, self_run->n, self_run->arg);
    leave(DONE);
    return NULL;
}

static void threads_body(run *r)
{
    pthread_t thread[RANKS_MAX];
    place places[RANKS_MAX];
    for (int i = 0; i < r->n; i++) {
        places[i] = (place){r, i};
        int e = pthread_create(&thread[i], NULL, body, &places[i]);
        if (e) {
            fprintf(stderr, "tests/ranks: pthread_create: %s\n", strerror(e));
            _exit(1);
        }
    }
    int failed = 0;
    for (int i = 0; i < r->n; i++) {
        pthread_join(thread[i], NULL);
        failed |= r->rank[i].outcome != DONE;
    }
    if (!failed && __lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
        snprintf(r->rank[0].text, sizeof r->rank[0].text, "the process of all ranks leaks memory");
        r->rank[0].outcome = FAILED;
    }
    fflush(NULL);
    _exit(failed);
}

/* ---- in the parent ---- */

typedef struct child {
    pid_t pid;
    int pidfd;
    siginfo_t end; /* once pidfd is -1 */
    int killed;    /* by us, at the deadline */
} child;

static pid_t start(run *r, int rank)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        perror("tests/ranks: fork");
        abort();
    }
    if (pid > 0) {
        setpgid(pid, pid); /* here and in the child: whoever comes first */
        return pid;
    }
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    /* The parent's own handlers (cmocka's) are not for ranks: a crash must end them. */
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    if (SLOWER == 1)
        for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
            signal(fatal[i], SIG_DFL);
    r->pid[rank] = getpid();
    if (r->threads)
        threads_body(r);
    place p = {r, rank};
    body(&p);
    _exit(1); /* not reached */
}

/* Reaps a child that ended, and kills what it left in its group while its pid still holds the
 * group's number. */
static void reap(child *c)
{
    waitid(P_PID, (id_t)c->pid, &c->end, WEXITED | WNOWAIT);
    kill(-c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
    close(c->pidfd);
    c->pidfd = -1;
}

static int any_failed(const run *r, const child *c, int children, uint32_t may_die)
{
    for (int i = 0; i < r->n; i++)
        if (r->rank[i].outcome == FAILED)
            return 1;
    for (int i = 0; i < children; i++) {
        if (c[i].pidfd >= 0)
            continue;
        if (c[i].end.si_code == CLD_EXITED ? c[i].end.si_status != 0 : !(may_die >> i & 1))
            return 1;
    }
    return 0;
}

static void watch(run *r, child *c, int children, int64_t deadline, uint32_t may_die)
{
    int failed = 0;
    for (;;) {
        struct pollfd fds[RANKS_MAX];
        int running = 0;
        for (int i = 0; i < children; i++) {
            fds[i] = (struct pollfd){c[i].pidfd, POLLIN, 0};
            running += c[i].pidfd >= 0;
        }
        if (!running)
            return;
        poll(fds, (nfds_t)children, 20);
        for (int i = 0; i < children; i++)
            if (c[i].pidfd >= 0 && fds[i].revents)
                reap(&c[i]);
        if (!failed && any_failed(r, c, children, may_die)) {
            failed = 1;
            if (deadline > now_ms() + GRACE_MS)
                deadline = now_ms() + GRACE_MS;
        }
        if (now_ms() < deadline)
            continue;
        for (int i = 0; i < children; i++) {
            if (c[i].pidfd < 0)
                continue;
            c[i].killed = 1;
            kill(-c[i].pid, SIGKILL);
        }
    }
}

/* Why rank i did not pass; 0 = it did. */
static int explain(const run *r, int i, const child *c, int may_die, char *out, size_t size)
{
    const record *rec = &r->rank[i];
    int signalled = c->end.si_code != CLD_EXITED;
    if (rec->outcome == FAILED)
        snprintf(out, size, "%s", rec->text);
    else if (c->killed && rec->outcome == RUNNING)
        snprintf(out, size, "hung");
    else if (c->killed)
        return 0; /* a thread that was done in a process that hung */
    else if (signalled && may_die)
        return 0;
    else if (signalled)
        snprintf(out, size, "killed by signal %d (%s)", c->end.si_status,
                 strsignal(c->end.si_status));
    else if (rec->outcome == RUNNING || c->end.si_status > 1) /* 1: another thread failed */
        snprintf(out, size, "exited with code %d", c->end.si_status);
    else
        return 0;
    return 1;
}

static const char *run_ranks(int n, int threads, rank_fn fn, void *arg, const ranks_options *o)
{
    static char text[RANKS_MAX * 1100];
    static const ranks_options none;
    if (!o)
        o = &none;
    if (n < 1 || n > RANKS_MAX)
        return "ranks_run: n is not within 1 to 16";
    run *r = ranks_shared(sizeof *r);
    r->n = n, r->threads = threads, r->fn = fn, r->arg = arg;
    child c[RANKS_MAX] = {{0}};
    int children = threads ? 1 : n;
    uint32_t may_die = threads ? 0 : o->may_die;
    int64_t deadline = now_ms() + (int64_t)(o->deadline_ms ? o->deadline_ms : DEADLINE_MS) * SLOWER;
    fflush(NULL);
    for (int i = 0; i < children; i++) {
        c[i].pid = r->pid[i] = start(r, i);
        c[i].pidfd = pidfd_open(c[i].pid, 0);
        if (c[i].pidfd < 0) {
            perror("tests/ranks: pidfd_open");
            abort();
        }
    }
    watch(r, c, children, deadline, may_die);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        char line[1024];
        if (!explain(r, i, &c[threads ? 0 : i], may_die >> i & 1, line, sizeof line))
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%srank %d: %s", used ? "\n" : "",
                                 i, line);
    }
    ranks_shared_free(r, sizeof *r);
    return used ? text : NULL;
}

const char *ranks_run(int n, rank_fn fn, void *arg, const ranks_options *options)
{
    return run_ranks(n, 0, fn, arg, options);
}

const char *ranks_run_threads(int n, rank_fn fn, void *arg, const ranks_options *options)
{
    return run_ranks(n, 1, fn, arg, options);
}
