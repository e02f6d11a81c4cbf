/* Creation where one rank runs out of something: whatever fails, and when, all ranks get the same
 * verdict, nothing stays behind, and with enough the same ranks meet. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "rankfold.h"
#include "../ranks.h"

RF_DECLARE_PACK(cpu_small);

/* ---- an allocator that fails when told; the linker puts it in (--wrap) ---- */

static _Thread_local long failing; /* 1 = the next allocation fails; 0 = none does */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static int fails(void)
{
    return failing > 0 && --failing == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* ---- what a process holds ---- */

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static int shared_mappings(void)
{
    int n = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, "memfd:rankfold") != NULL;
    if (f)
        fclose(f);
    return n;
}

/* ---- one try ---- */

typedef struct verdict {
    rf_result code;
    int rank;
    char text[RF_ERROR_TEXT];
} verdict;

static verdict *verdicts; /* [RANKS_MAX], shared by the ranks */

/* The limit under which so many files can be opened: numbers that the test inherited may leave
 * gaps. */
static rlim_t limit_that_leaves(int files)
{
    int fd = 0;
    while (files > 0)
        files -= fcntl(fd++, F_GETFD) < 0;
    return (rlim_t)fd;
}

/* Round `round`: rank 1 can open `files_left` files (-1 = as many as it likes), and its allocation
 * number `nth` fails (0 = none). Prepares, calls and closes where creation succeeds. */
static rf_result meet(int rank, int world, int round, int files_left, long nth)
{
    static const rf_pack *const packs[] = {&rf_pack_cpu_small};
    rf_config config = {.struct_size = sizeof config,
                        .packs = packs,
                        .n_packs = 1,
                        .create_timeout_ms = 20000,
                        .capacity_bytes = 4096};
    char name[64];
    rf_bootstrap boot;
    rf_comm *comm = NULL;
    rf_error err = {.rank = -1};
    struct rlimit before, low;
    int files = open_files();

    snprintf(name, sizeof name, "test_limits %d %d", (int)getppid(), round);
    RANK_CHECK(!rf_bootstrap_socket(name, rank, world, &boot, &err), "%s", err.text);
    getrlimit(RLIMIT_NOFILE, &before);
    low = before;
    low.rlim_cur = limit_that_leaves(files_left);
    if (rank == 1 && files_left >= 0)
        setrlimit(RLIMIT_NOFILE, &low);
    failing = rank == 1 ? nth : 0;
    rf_result result = rf_comm_create(&config, &boot, &comm, &err);
    failing = 0;
    setrlimit(RLIMIT_NOFILE, &before);
    rf_bootstrap_free(&boot);

    verdicts[rank] = (verdict){.code = result, .rank = err.rank};
    memcpy(verdicts[rank].text, err.text, sizeof err.text);
    rank_barrier();
    for (int r = 0; r < world; r++)
        RANK_CHECK(verdicts[r].code == result && verdicts[r].rank == err.rank,
                   "round %d: rank %d: %d %s; here: %d %s", round, r, verdicts[r].code,
                   verdicts[r].text, result, err.text);
    if (!result) {
        float x = 1;
        RANK_CHECK(!rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL) && x == (float)world, "%g",
                   (double)x);
        RANK_CHECK(!rf_comm_close(comm, 20000, &err), "%s", err.text);
        rf_comm_destroy(comm);
    }
    RANK_CHECK(open_files() == files, "round %d: %d files, %d before", round, open_files(), files);
    RANK_CHECK(!shared_mappings(), "round %d: %d mappings left", round, shared_mappings());
    rank_barrier();
    return result;
}

/* ---- tests ---- */

#define MOST 64

static void with_few_files(int rank, int world, void *arg)
{
    (void)arg;
    int files_left = 2; /* who cannot open the two that reach the others cannot tell them why */
    int failed = 0, round = 0;
    while (meet(rank, world, round++, files_left++, 0)) {
        failed++;
        RANK_CHECK(round < MOST, "still failing with %d files more", round);
    }
    RANK_CHECK(failed >= 3, "only %d rounds failed: nothing was tested", failed);
}

static void test_running_out_of_files_is_unanimous(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, with_few_files, NULL, NULL));
}

static void with_failing_allocations(int rank, int world, void *arg)
{
    (void)arg;
    long nth = 1;
    while (meet(rank, world, (int)nth, -1, nth)) {
        RANK_CHECK(verdicts[0].code == RF_E_MEMORY, "allocation %ld: %d %s", nth, verdicts[0].code,
                   verdicts[0].text);
        RANK_CHECK(nth++ < MOST, "still failing");
    }
    RANK_CHECK(nth > 5, "only %ld allocations failed: nothing was tested", nth - 1);
}

static void test_running_out_of_memory_is_unanimous(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, with_failing_allocations, NULL, NULL));
}

/* The limit on the size of files is a signal where it is met, and a library raises none. */
static void with_small_files(int rank, int world, void *arg)
{
    (void)arg;
    struct rlimit before, low;
    getrlimit(RLIMIT_FSIZE, &before);
    low = before;
    low.rlim_cur = 4096;
    if (rank == 1)
        setrlimit(RLIMIT_FSIZE, &low);
    rf_result result = meet(rank, world, 1, -1, 0);
    setrlimit(RLIMIT_FSIZE, &before);
    RANK_CHECK(result == RF_E_SYSTEM && strstr(verdicts[rank].text, "File too large"), "%d %s",
               result, verdicts[rank].text);
}

static void test_a_limit_on_file_sizes_is_unanimous(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, with_small_files, NULL, NULL));
}

int main(void)
{
    verdicts = ranks_shared(RANKS_MAX * sizeof *verdicts);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_running_out_of_files_is_unanimous),
        cmocka_unit_test(test_running_out_of_memory_is_unanimous),
        cmocka_unit_test(test_a_limit_on_file_sizes_is_unanimous),
    };
    int failed = cmocka_run_group_tests_name("limits", tests, NULL, NULL);
    ranks_shared_free(verdicts, RANKS_MAX * sizeof *verdicts);
    return failed;
}
