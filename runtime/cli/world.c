#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/world.h"

#define DEFAULT_WORLD 2
#define GRACE_SECONDS 10.0 /* for the others to say what they saw when one rank died */

/* One rank's last words, in memory shared with the parent. */
typedef struct words {
    char text[RF_CLI_MESSAGE];
} words;

static words *last_words; /* of this rank, where rf_cli_world started it */
static int speaks = 1;    /* on stderr by itself */

int rf_cli_world_hand_over(const char *text)
{
    if (last_words)
        snprintf(last_words->text, sizeof last_words->text, "%s", text);
    return !speaks;
}

/* ---- the parent ---- */

typedef struct family {
    int n, left;
    pid_t pid[RF_CLI_MOST_RANKS];
    words *words; /* n of them, shared */
    int failed;   /* exit code so far */
    int ended;    /* signals from here on are our own: no news */
    int unheard;  /* nobody reads the output any more: no complaints */
    double until; /* when the rest is killed; 0 = no hurry */
} family;

static void end_all(family *f, int signal)
{
    f->ended = 1;
    for (int r = 0; r < f->n; r++)
        if (f->pid[r] > 0)
            kill(f->pid[r], signal);
}

static void one_ended(family *f, int rank, int status)
{
    f->pid[rank] = 0;
    f->left--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE)
        f->unheard = 1;
    else if (WIFSIGNALED(status) && !f->ended)
        rf_cli_error("rank %d was killed by signal %d (%s)", rank, WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : RF_CLI_FAILURE;
    if (!f->failed)
        f->failed = code;
    if (f->until == 0)
        f->until = rf_cli_seconds() + GRACE_SECONDS;
}

static void reap(family *f)
{
    for (int r = 0; r < f->n; r++) {
        int status;
        if (f->pid[r] > 0 && waitpid(f->pid[r], &status, WNOHANG) == f->pid[r])
            one_ended(f, r, status);
    }
}

static void repeat_last_words(const family *f)
{
    for (int r = 1; r < f->n && !f->unheard; r++) {
        int said = f->words[r].text[0] == 0;
        for (int k = 0; k < r; k++)
            said |= strcmp(f->words[r].text, f->words[k].text) == 0;
        if (!said)
            rf_cli_error("rank %d: %s", r, f->words[r].text);
    }
}

static int look_after(family *f, const sigset_t *signals)
{
    int interrupted = 0;
    while (f->left > 0) {
        struct timespec tick = {0, 100000000};
        int signal = sigtimedwait(signals, NULL, &tick);
        reap(f);
        if (signal > 0 && signal != SIGCHLD && !interrupted) {
            interrupted = signal;
            f->until = rf_cli_seconds() + 1;
            end_all(f, SIGTERM);
        }
        if (f->until > 0 && rf_cli_seconds() > f->until)
            end_all(f, SIGKILL);
    }
    if (interrupted)
        return 128 + interrupted;
    repeat_last_words(f);
    return f->failed;
}

/* ---- the ranks ---- */

static int run_rank(const char *name, int rank, int world, rf_cli_rank_fn fn, void *ctx)
{
    rf_bootstrap boot;
    rf_error err = {0};
    if (rf_bootstrap_socket(name, rank, world, &boot, &err) != RF_OK)
        return rf_cli_failed("bootstrap", &err);
    int code = fn(&boot, ctx);
    rf_bootstrap_free(&boot);
    return code;
}

static void be_rank(family *f, const char *name, int rank, pid_t parent, const sigset_t *mask,
                    rf_cli_rank_fn fn, void *ctx)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(RF_CLI_FAILURE); /* it died before we asked to die with it */
    sigprocmask(SIG_SETMASK, mask, NULL);
    last_words = &f->words[rank];
    speaks = rank == 0;
    int code = rf_cli_finish(run_rank(name, rank, f->n, fn, ctx));
    _exit(code);
}

static int start_ranks(family *f, rf_cli_rank_fn fn, void *ctx, const sigset_t *mask)
{
    char name[64];
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint64_t)(rf_cli_seconds() * 1e9);
    pid_t parent = getpid();
    snprintf(name, sizeof name, "rankfold-%d-%016llx", parent, (unsigned long long)random);
    fflush(NULL);
    for (int r = 0; r < f->n; r++) {
        pid_t pid = fork();
        if (pid == 0)
            be_rank(f, name, r, parent, mask, fn, ctx);
        if (pid < 0) {
            rf_cli_error("cannot start rank %d: %s", r, strerror(errno));
            f->failed = RF_CLI_FAILURE;
            end_all(f, SIGKILL);
            return 0;
        }
        f->pid[r] = pid;
        f->left++;
    }
    return 1;
}

static int fork_world(int n, rf_cli_rank_fn fn, void *ctx)
{
    family f = {.n = n};
    size_t bytes = sizeof(words) * (size_t)n;
    f.words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f.words == MAP_FAILED) {
        rf_cli_error("no shared memory: %s", strerror(errno));
        return RF_CLI_FAILURE;
    }
    sigset_t signals, before;
    sigemptyset(&signals);
    static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        sigaddset(&signals, watched[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    start_ranks(&f, fn, ctx, &before);
    int code = look_after(&f, &signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    munmap(f.words, bytes);
    return code;
}

/* ---- which world ---- */

/* This process's rank in a launcher's world, as text; NULL = there is none. */
static const char *launched(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    const char *rank = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rank; i++)
        rank = getenv(names[i]);
    return rank;
}

static int join_launcher(rf_cli_rank_fn fn, void *ctx)
{
    rf_bootstrap boot;
    rf_error err = {0};
    if (rf_bootstrap_env(&boot, &err) != RF_OK)
        return rf_cli_failed("the launcher's environment", &err);
    int code = fn(&boot, ctx);
    rf_bootstrap_free(&boot);
    return code;
}

int rf_cli_world(uint64_t n, rf_cli_rank_fn fn, void *ctx)
{
    if (n == 0 && launched())
        return join_launcher(fn, ctx);
    return fork_world(n ? (int)n : DEFAULT_WORLD, fn, ctx);
}

int rf_cli_world_speaks(uint64_t n)
{
    const char *rank = n ? NULL : launched();
    return !rank || strcmp(rank, "0") == 0;
}
