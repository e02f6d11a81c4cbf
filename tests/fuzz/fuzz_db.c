/* Fuzzes the opener and the lookups of tactic databases: whatever the bytes, no crash, no hang, an
 * answer or none, and the file as it was.
 *
 *   fuzz_db [ROUNDS [SEED]]     mutates a valid database; the short run of the tests
 *   with -fsanitize=fuzzer -DLIBFUZZER: the usual target, one input is one file */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit/store_facts.h"
#include "../unit/store_folder.h"
#include "mutate.h"
#include "store/maintain.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[FOLDER_PATH], path[FOLDER_PATH + 16];
static facts_place here;
static rf_variant variant;
static unsigned long answers, refusals;

static void clean(void)
{
    folder_remove(folder);
}

static void begin(void)
{
    if (folder[0])
        return;
    if (!folder_make(folder))
        abort();
    atexit(clean);
    snprintf(path, sizeof path, "%s/fuzz.db", folder);
    here = facts_at("r0.cpu=Imaginary\n", "r0.kernel=1\n");
    variant = facts_variant("ar_w2_f32_h0_os", 0, 1);
}

static void ask(rf_store *store)
{
    facts_place later = facts_at(here.hw.text, "r0.kernel=2\n");
    for (uint64_t rows = 1; rows <= 4096; rows *= 8) {
        rfi_decision d;
        rfi_measurement m;
        rfi_key key = facts_key(&here, rows, 4096), other = facts_key(&later, rows, 1024);
        answers += (unsigned long)store->v->lookup(store, &key, facts_have_all, NULL, &d);
        if (memchr(d.reason, 0, sizeof d.reason) == NULL)
            abort();
        answers += (unsigned long)store->v->lookup(store, &other, facts_have_all, NULL, &d);
        store->v->swept(store, &key);
        store->v->measured(store, &key, &variant, 8, &m);
    }
    store->v->generation(store);
    const char *warning = rf_store_warning(store);
    refusals += warning != NULL;
    if (warning && strpbrk(warning, "\n\r"))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rf_store *store = NULL;
    rfi_db db;
    rf_error err = {0};
    begin();
    unlink(path);
    if (!file_write(path, data, size) || chmod(path, 0600))
        abort();
    /* Once as the writable file, once as the shipped one. */
    for (int shipped = 0; shipped < 2; shipped++) {
        if (rf_store_open(shipped ? "/nonexistent/none.db" : path, shipped ? path : NULL, 0, &store,
                          &err))
            abort();
        ask(store);
        rf_store_close(store);
    }
    if (rfi_db_open(&db, path, RFI_DB_READ, 0, &err) == RF_OK) {
        rfi_db_check(&db, &err);
        rfi_db_close(&db);
    }
    size_t after = 0;
    char *is = file_read(path, &after);
    if (!is || after != size || memcmp(is, data, size))
        abort();
    free(is);
    return 0;
}

#ifndef LIBFUZZER

/* A valid file with several hosts, environments and shapes. */
static unsigned char *valid(size_t *size)
{
    rf_error err = {0};
    rf_store *store = NULL;
    begin();
    if (rf_store_open(path, NULL, 0, &store, &err))
        abort();
    for (int c = 0; c < 6; c++) {
        facts_place place = facts_at(c % 3 ? here.hw.text : "r0.cpu=Another\n",
                                     c % 2 ? here.env.text : "r0.kernel=0\n");
        rfi_key key = facts_key(&place, UINT64_C(1) << c, 4096);
        rfi_measurement m = facts_measurement(&key, &variant, 8, 1000 + c);
        if (facts_campaign(store, &place, &key, &m, 1, &err)) {
            fprintf(stderr, "fuzz_db: %s\n", err.text);
            exit(1);
        }
    }
    rf_store_close(store);
    return (unsigned char *)file_read(path, size);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    uint64_t state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    size_t whole = 0;
    unsigned char *good = valid(&whole), *bytes = good ? malloc(whole) : NULL;
    if (!bytes)
        return 1;
    LLVMFuzzerTestOneInput(good, whole);
    if (!answers || refusals) {
        fprintf(stderr, "fuzz_db: the valid file was refused\n");
        return 1;
    }
    for (unsigned long i = 0; i < rounds; i++) {
        size_t size = whole;
        memcpy(bytes, good, whole);
        mutate(bytes, &size, &state);
        LLVMFuzzerTestOneInput(bytes, size);
    }
    printf("fuzz_db: %lu files, %lu answers, %lu refusals\n", rounds, answers, refusals);
    free(good);
    free(bytes);
    return refusals == 0; /* mutations that nothing notices would test nothing */
}

#endif
