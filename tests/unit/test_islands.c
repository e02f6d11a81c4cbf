/* Islands: topology files, good and bad; groupings from links; the oracle of their order. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/islands.h"

/* ---- files ---- */

static rf_result parse(const char *text, size_t bytes, rfi_topology *out, rf_error *err)
{
    char *exact = malloc(bytes ? bytes : 1); /* no zero behind it, for AddressSanitizer */
    memcpy(exact, text, bytes);
    rf_result result = rfi_topology_parse("file", exact, bytes, out, err);
    free(exact);
    return result;
}

static void test_a_file_in_any_order_with_comments(void **state)
{
    (void)state;
    static const char text[] = "# two sockets\n\n 3\t1\r\n0 0 # GPU 0\n2 255\n  1   0";
    rfi_topology t = {0};
    rf_error err = {0};
    assert_int_equal(parse(text, sizeof text - 1, &t, &err), RF_OK);
    assert_int_equal(t.ranks, 4);
    assert_true(t.island[0] == 0 && t.island[1] == 0 && t.island[2] == 255 && t.island[3] == 1);
}

static void test_bad_files_are_refused_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"", "file has no rank in it"},
        {"# nothing\n\n", "file has no rank in it"},
        {"0 0\n1\n", "file, line 2 is \"1\", expected a rank and its island, two numbers"},
        {"0 0\n1 0 0\n", "line 2 is \"1 0 0\""},
        {"zero 0\n", "line 1 is \"zero 0\""},
        {"0 -1\n", "line 1 is \"0 -1\""},
        {"+0 1\n", "line 1 is \"+0 1\""},
        {"0 0x1\n", "line 1 is \"0 0x1\""},
        {"0,0\n", "line 1 is \"0,0\""},
        {"0001\n", "line 1 is \"0001\""}, /* one number, longer than a rank's may be */
        {"0 1000\n", "line 1 is \"0 1000\""},
        {"0 00000000000000000000000000000000000000000000000000000000000000000000000001\n",
         "0000000..."},
        {"0 \x1b[31m\n", "line 1 is \"0 ?[31m\""},
        {"8 0\n", "line 1: rank 8 on island 0, expected 0 to 7 and 0 to 255"},
        {"0 256\n", "line 1: rank 0 on island 256"},
        {"0 0\n#\n0 0\n", "line 3: rank 0 again, line 1 has it already"},
        {"0 0\n3 1\n1 0\n", "file has no line for rank 2, but for rank 3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rfi_topology t = {.ranks = 77};
        rf_error err = {0};
        assert_int_equal(parse(rows[i].text, strlen(rows[i].text), &t, &err), RF_E_ARG);
        assert_int_equal(t.ranks, 77);
        if (!strstr(err.text, rows[i].words))
            fail_msg("no \"%s\" in: %s", rows[i].words, err.text);
    }
    rfi_topology t;
    rf_error err = {0};
    assert_int_equal(parse("0 0\n1 \0", 7, &t, &err), RF_E_ARG);
    assert_non_null(strstr(err.text, "line 2 is \"1 ?\""));
}

/* Whatever the bytes: an answer, in printable words, or a grouping that reads back. */
static void test_random_files(void **state)
{
    (void)state;
    static const char alphabet[] = "0123456789\n\n\n   \t\r#x-\0\xff";
    uint32_t random = 12345, good = 0;
    for (int run = 0; run < 20000; run++) {
        char text[64] = "0 0\n1 1\n2 0\n3 1\n";
        size_t n = strlen(text);
        for (uint32_t i = 0; i <= random % 3; i++) {
            random = random * 1664525u + 1013904223u;
            size_t at = (random >> 8) % (n + 1);
            text[at] = alphabet[(random >> 16) % (sizeof alphabet - 1)];
            n = at == n ? n + 1 : n;
        }
        rfi_topology t = {0}, again = {0};
        rf_error err = {0};
        if (parse(text, n, &t, &err) == RF_OK) {
            size_t used = 0;
            for (int r = 0; r < t.ranks; r++)
                used +=
                    (size_t)snprintf(text + used, sizeof text - used, "%d %u\n", r, t.island[r]);
            assert_int_equal(parse(text, used, &again, NULL), RF_OK);
            assert_memory_equal(&t, &again, sizeof t);
            good++;
        } else {
            for (const char *c = err.text; *c; c++)
                assert_true(*c >= ' ' && *c <= '~');
        }
    }
    assert_true(good > 100);
}

static void reads(const char *path, const char *words)
{
    rfi_topology t;
    rf_error err = {0};
    setenv("RANKFOLD_TOPOLOGY", path, 1);
    rf_result result = rfi_topology_read(&t, &err);
    unsetenv("RANKFOLD_TOPOLOGY");
    assert_int_equal(result, words ? RF_E_ARG : RF_OK);
    assert_int_equal(t.ranks, words ? 0 : 2);
    if (words && !strstr(err.text, words))
        fail_msg("no \"%s\" in: %s", words, err.text);
}

static void test_what_is_no_small_plain_file_is_refused(void **state)
{
    (void)state;
    const char *folder = getenv("TMPDIR");
    char path[300], pipe[300];
    folder = folder ? folder : "/tmp";
    snprintf(path, sizeof path, "%s/islands-%d.txt", folder, (int)getpid());
    snprintf(pipe, sizeof pipe, "%s/islands-%d.fifo", folder, (int)getpid());
    FILE *f = fopen(path, "w");
    fputs("0 0\n1 1\n", f);
    fclose(f);
    reads(path, NULL);
    f = fopen(path, "a");
    for (int i = 0; i < RFI_TOPOLOGY_BYTES / 2; i++)
        fputs("#\n", f);
    fclose(f);
    reads(path, "is longer than 4096 bytes");
    unlink(path);
    reads(path, "No such file");
    reads(folder, "is no plain file");
    reads("/dev/zero", "is no plain file");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    reads(pipe, "is no plain file"); /* and nobody waits for a writer */
    unlink(pipe);
    rfi_topology t = {.ranks = 5};
    assert_int_equal(rfi_topology_read(&t, NULL), RF_OK);
    assert_int_equal(t.ranks, 0);
}

/* ---- groupings ---- */

static void is_parted(const rf_islands_info *islands, int world, const char *expected,
                      const char *reason)
{
    char text[RFI_ISLANDS_TEXT];
    rfi_islands_text(islands, world, text);
    assert_string_equal(text, expected);
    assert_int_equal(islands->on, expected[0] != 0);
    assert_string_equal(islands->reason, reason);
}

static void test_groupings_of_files(void **state)
{
    (void)state;
    static const struct {
        rfi_topology topology;
        int world;
        const char *expected, *reason;
    } rows[] = {
        {{4, {0, 0, 1, 1}}, 4, "0,1|2,3", "RANKFOLD_TOPOLOGY"},
        {{4, {1, 0, 1, 0}}, 4, "0,2|1,3", "RANKFOLD_TOPOLOGY"},
        {{4, {9, 3, 3, 9}}, 4, "0,3|1,2", "RANKFOLD_TOPOLOGY"},
        {{6, {0, 1, 0, 1, 1, 0}}, 6, "0,2,5|1,3,4", "RANKFOLD_TOPOLOGY"},
        {{8, {0, 1, 0, 1, 0, 1, 0, 1}}, 8, "0,2,4,6|1,3,5,7", "RANKFOLD_TOPOLOGY"},
        {{4, {0, 0, 0, 1}}, 4, "", "RANKFOLD_TOPOLOGY: expected equal islands, found 3 and 1"},
        {{4, {0, 0, 0, 0}}, 4, "", "RANKFOLD_TOPOLOGY: expected 2 islands, found 1"},
        {{4, {0, 1, 2, 1}}, 4, "", "RANKFOLD_TOPOLOGY: expected 2 islands, found 3"},
        {{8, {0}}, 4, "", "RANKFOLD_TOPOLOGY: for a world of 8, this is one of 4"},
        {{2, {0, 1}},
         2,
         "",
         "RANKFOLD_TOPOLOGY is not used: a world of 2 is not parted, one of 4, 6 or 8 is"},
        {{5, {0, 0, 0, 1, 1}},
         5,
         "",
         "RANKFOLD_TOPOLOGY is not used: a world of 5 is not parted, one of 4, 6 or 8 is"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_islands_info islands;
        rfi_islands_from_file(&rows[i].topology, rows[i].world, &islands);
        is_parted(&islands, rows[i].world, rows[i].expected, rows[i].reason);
    }
}

/* distance[a][b] as a line of digits for each rank. */
static void test_groupings_of_links(void **state)
{
    (void)state;
    static const struct {
        int world;
        const char *distance[RF_MAX_WORLD], *expected, *reason;
    } rows[] = {
        {4, {"-365", "3-65", "66-3", "553-"}, "0,1|2,3", "links"},
        /* a switch on each socket, ranks in turns */
        {4, {"-636", "6-63", "36-6", "636-"}, "0,2|1,3", "links"},
        /* bridged pairs, two on each socket: the sockets are the islands */
        {8,
         {"-2556666", "2-556666", "55-26666", "552-6666", "6666-255", "66662-55", "666655-2",
          "6666552-"},
         "0,1,2,3|4,5,6,7",
         "links"},
        {6, {"-44666", "4-4666", "44-666", "666-44", "6664-4", "66644-"}, "0,1,2|3,4,5", "links"},
        {4, {"-222", "2-22", "22-2", "222-"}, "", "all ranks are equally near"},
        {4, {"-336", "3-36", "33-6", "666-"}, "", "links: expected equal islands, found 3 and 1"},
        /* 0 and 1 are near each other by way of 2 only */
        {6, {"-93999", "9-3999", "33-999", "999-33", "9993-3", "99933-"}, "0,1,2|3,4,5", "links"},
        /* pairs that are all as far from each other */
        {8,
         {"-2666666", "2-666666", "66-26666", "662-6666", "6666-266", "66662-66", "666666-2",
          "6666662-"},
         "",
         "links: expected 2 islands, found 4"},
        /* a chain is one island */
        {4, {"-266", "2-26", "62-2", "662-"}, "", "links: those that are near join all ranks"},
        {4, {"-355", "3-05", "50-3", "553-"}, "", "how near ranks 1 and 2 are is not known"},
        /* near is what both sides call so */
        {4, {"-333", "3-63", "36-3", "663-"}, "", "links: those that are near join all ranks"},
        {4, {"-366", "3-66", "33-3", "333-"}, "0,1|2,3", "links"},
        {3, {"-36", "3-6", "66-"}, "", "a world of 3 is not parted, one of 4, 6 or 8 is"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD] = {{0}};
        rf_islands_info islands;
        for (int a = 0; a < rows[i].world; a++)
            for (int b = 0; b < rows[i].world; b++)
                distance[a][b] = a == b ? 0 : (uint8_t)(rows[i].distance[a][b] - '0');
        rfi_islands_from_links(distance, rows[i].world, &islands);
        is_parted(&islands, rows[i].world, rows[i].expected, rows[i].reason);
    }
}

/* ---- the oracle ---- */

static void test_the_order_decides(void **state)
{
    (void)state;
    static const float in[4][1] = {{0x1p24f}, {1}, {-0x1p24f}, {1}};
    const void *ins[4] = {in[0], in[1], in[2], in[3]};
    static const struct {
        uint8_t order[4];
        float sum;
    } rows[] = {
        {{0, 1, 2, 3}, 1}, /* 2^24 + 1 is 2^24, -2^24 + 1 is exact */
        {{0, 2, 1, 3}, 2},
        {{1, 3, 2, 0}, 2},
        {{0, 3, 1, 2}, 1},
    };
    float out;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(rf_oracle_islands(ins, &out, 1, RF_F32, 4, rows[i].order), RF_OK);
        assert_true(out == rows[i].sum);
    }
    assert_int_equal(rf_oracle_all_reduce(ins, &out, 1, RF_F32, 4), RF_OK);
    assert_true(out == 1);
}

static void test_zeros_keep_their_sign_and_nans_are_canonical(void **state)
{
    (void)state;
    static const uint8_t order[] = {3, 1, 0, 2};
    uint16_t in[4][3] = {
        {0x8000, 0xffff, 0}, {0x8000, 0, 0x7f80}, {0x8000, 0, 0xff80}, {0x8000, 0, 0}};
    const void *ins[4] = {in[0], in[1], in[2], in[3]};
    uint16_t out[3];
    assert_int_equal(rf_oracle_islands(ins, out, 3, RF_BF16, 4, order), RF_OK);
    assert_true(out[0] == 0x8000 && out[1] == 0x7fff && out[2] == 0x7fff);
}

static void test_the_oracle_refuses_wrong_arguments(void **state)
{
    (void)state;
    float x = 1;
    const void *ins[4] = {&x, &x, &x, &x};
    static const uint8_t order[] = {0, 1, 2, 3}, twice[] = {0, 1, 1, 3}, beyond[] = {0, 1, 2, 9};
    assert_int_equal(rf_oracle_islands(ins, &x, 1, RF_F32, 4, NULL), RF_E_ARG);
    assert_int_equal(rf_oracle_islands(ins, &x, 1, RF_F32, 4, twice), RF_E_ARG);
    assert_int_equal(rf_oracle_islands(ins, &x, 1, RF_F32, 4, beyond), RF_E_ARG);
    assert_int_equal(rf_oracle_islands(ins, &x, 1, RF_F32, 3, order), RF_E_ARG);
    assert_int_equal(rf_oracle_islands(ins, &x, 1, (rf_dtype)9, 4, order), RF_E_DTYPE);
    assert_int_equal(rf_oracle_islands(NULL, &x, 1, RF_F32, 4, order), RF_E_ARG);
    assert_int_equal(rf_oracle_islands(NULL, NULL, 0, RF_F32, 4, order), RF_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_in_any_order_with_comments),
        cmocka_unit_test(test_bad_files_are_refused_in_words),
        cmocka_unit_test(test_random_files),
        cmocka_unit_test(test_what_is_no_small_plain_file_is_refused),
        cmocka_unit_test(test_groupings_of_files),
        cmocka_unit_test(test_groupings_of_links),
        cmocka_unit_test(test_the_order_decides),
        cmocka_unit_test(test_zeros_keep_their_sign_and_nans_are_canonical),
        cmocka_unit_test(test_the_oracle_refuses_wrong_arguments),
    };
    return cmocka_run_group_tests_name("islands", tests, NULL, NULL);
}
