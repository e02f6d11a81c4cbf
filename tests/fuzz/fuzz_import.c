/* Fuzzes the reader of exported text: whatever the bytes, no crash, the target stays sound, and a
 * refused text changes nothing.
 *
 *   fuzz_import [ROUNDS [SEED]]
 *   with -fsanitize=fuzzer -DLIBFUZZER: the usual target, one input is one text */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/store_facts.h"
#include "../unit/store_folder.h"
#include "mutate.h"
#include "store/maintain.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static rfi_db target; /* in memory: nothing is synced */
static unsigned long accepted, refused;

static void begin(void)
{
    if (target.handle)
        return;
    snprintf(target.path, sizeof target.path, "memory");
    if (sqlite3_open(":memory:", &target.handle) ||
        sqlite3_exec(target.handle, rfi_schema_sql, NULL, NULL, NULL))
        abort();
    rfi_db_protect(target.handle);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rf_error err = {0};
    uint64_t added = 0;
    begin();
    int before = sqlite3_total_changes(target.handle);
    char *text = malloc(size + 1); /* exactly as long as it is, for AddressSanitizer */
    if (!text)
        return 0;
    memcpy(text, data, size);
    rf_result result = rfi_db_import(&target, "fuzz.sql", text, size, &added, &err);
    free(text);
    accepted += result == RF_OK;
    refused += result != RF_OK;
    if (result == RF_OK ? err.code != RF_OK : !err.text[0])
        abort();
    if (!sqlite3_get_autocommit(target.handle))
        abort();
    if (sqlite3_total_changes(target.handle) != before && rfi_db_check(&target, &err))
        abort();
    return 0;
}

#ifndef LIBFUZZER

static char *valid(size_t *size)
{
    char folder[FOLDER_PATH], path[FOLDER_PATH + 16], *text = NULL;
    rf_error err = {0};
    rf_store *store = NULL;
    rfi_db db;
    if (!folder_make(folder))
        abort();
    snprintf(path, sizeof path, "%s/valid.db", folder);
    facts_place here = facts_at("r0.cpu=Imaginary 'quoted'\n", "r0.kernel=1\n");
    rf_variant variant = facts_variant("ar_w2_f32_h0_os", 0, 1);
    rfi_key key = facts_key(&here, 4, 4096);
    rfi_measurement m[] = {facts_measurement(&key, &variant, 8, 1000),
                           facts_measurement(&key, NULL, 0, 1234.5)};
    FILE *out = open_memstream(&text, size);
    if (!out || rf_store_open(path, NULL, 0, &store, &err) ||
        facts_campaign(store, &here, &key, m, 2, &err) ||
        rfi_db_open(&db, path, RFI_DB_READ, 0, &err) || rfi_db_export(&db, NULL, out, &err)) {
        fprintf(stderr, "fuzz_import: %s\n", err.text);
        exit(1);
    }
    fclose(out);
    rf_store_close(store);
    rfi_db_close(&db);
    folder_remove(folder);
    return text;
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    uint64_t state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    size_t whole = 0;
    char *good = valid(&whole);
    unsigned char *bytes = malloc(whole);
    if (!good || !bytes)
        return 1;
    for (unsigned long i = 0; i < rounds; i++) {
        size_t size = whole;
        memcpy(bytes, good, whole);
        mutate(bytes, &size, &state);
        LLVMFuzzerTestOneInput(bytes, size);
    }
    unsigned long refusals = refused;
    rfi_db_close(&target); /* a text that was accepted may disagree with the valid one */
    LLVMFuzzerTestOneInput((const uint8_t *)good, whole);
    printf("fuzz_import: %lu texts, %lu refused\n", rounds, refusals);
    rfi_db_close(&target);
    free(good);
    free(bytes);
    return refusals == 0 || refused != refusals; /* the valid one is accepted, some are not */
}

#endif
