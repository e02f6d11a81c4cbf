/* Runs a function as several ranks and brings their verdicts back to the one process that asserts.
 *
 * A cmocka assertion in a forked child jumps into the rest of the suite there while the parent
 * stays green, so ranks never assert: they RANK_CHECK, and the parent asserts once:
 *
 *     static void sums(int rank, int world, void *arg) { RANK_CHECK(x == 3, "x is %d", x); }
 *     static void test_sums(void **state) { RANKS_ASSERT(ranks_run(4, sums, NULL, NULL)); }
 *
 * Ranks die with the parent, have a deadline, and are killed and reaped before the call returns,
 * with whatever they forked themselves. */
#ifndef RANKFOLD_TESTS_RANKS_H
#define RANKFOLD_TESTS_RANKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RANKS_MAX 16

typedef void (*rank_fn)(int rank, int world, void *arg);

/* Zero means default; NULL options are all zero. */
typedef struct ranks_options {
    uint32_t deadline_ms; /* of the whole run; default 30000, ten times that under a sanitizer */
    uint32_t may_die;     /* bit per rank whose death by a signal belongs to the test */
} ranks_options;

/* NULL = every rank returned and checked nothing false. Else one line per rank that failed, in rank
 * order: which check with its text, which signal, which exit code, or "hung". Valid until the next
 * run. ranks_run: every rank is a process. ranks_run_threads: all ranks are threads of one child
 * process (ThreadSanitizer sees nothing between processes); may_die does not apply. */
const char *ranks_run(int n, rank_fn fn, void *arg, const ranks_options *options);
const char *ranks_run_threads(int n, rank_fn fn, void *arg, const ranks_options *options);

/* In the parent only. */
#define RANKS_ASSERT(verdict)                                                                      \
    do {                                                                                           \
        const char *ranks_text = (verdict);                                                        \
        if (ranks_text)                                                                            \
            fail_msg("%s", ranks_text);                                                            \
    } while (0)

/* In a rank, on the thread that runs rank_fn: records the failure and ends the rank. */
#define RANK_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            rank_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                                \
    } while (0)
void rank_fail(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5), noreturn));

/* All ranks of the run meet. A rank that ended never comes: the others hang until the deadline. */
void rank_barrier(void);
/* Process of rank r (ranks_run only): to stop it or to kill it. Valid after the first barrier. */
pid_t rank_pid(int r);

/* Memory that the parent and the ranks of later runs share, zeroed. */
void *ranks_shared(size_t bytes);
void ranks_shared_free(void *memory, size_t bytes);

#endif
