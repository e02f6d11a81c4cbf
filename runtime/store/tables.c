#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/maintain.h"

#define OF_CAMPAIGN "campaign IN (SELECT campaign FROM campaign WHERE hw_fp = ?1)"

const rfi_table rfi_tables[RFI_TABLES] = {
    {"host", "hw_fp", 2, 1, "hw_fp = ?1"},
    {"environment", "env_fp", 2, 1, "env_fp IN (SELECT env_fp FROM campaign WHERE hw_fp = ?1)"},
    {"variant", "variant_hash", 14, 1,
     "variant_hash IN (SELECT variant_hash FROM measurement WHERE " OF_CAMPAIGN ")"},
    {"campaign", "campaign", 9, 1, "hw_fp = ?1"},
    {"shape", "campaign, shape_no", 9, 2, OF_CAMPAIGN},
    {"measurement", "campaign, shape_no, measurement_no", 14, 3, OF_CAMPAIGN},
    {"sweep", "campaign, shape_no", 3, 2, OF_CAMPAIGN},
    {"finish", "campaign", 2, 1, OF_CAMPAIGN},
};

/* Texts are printed to terminals and pages: lines, and nothing that moves a cursor. */
static int has_control(sqlite3_stmt *row, int columns)
{
    for (int i = 0; i < columns; i++) {
        if (sqlite3_column_type(row, i) != SQLITE_TEXT)
            continue;
        const char *text = rfi_column(row, i);
        if ((size_t)sqlite3_column_bytes(row, i) != strlen(text))
            return 1;
        for (; *text; text++)
            if (((unsigned char)*text < 0x20 && *text != '\n') || *text == 0x7f)
                return 1;
    }
    return 0;
}

static int is_hash_of_text(sqlite3_stmt *row)
{
    unsigned char said[16], is[16];
    const char *text = rfi_column(row, 1);
    rfi_hash128(text, strlen(text), is);
    return rfi_unhex(rfi_column(row, 0), said) && !memcmp(said, is, sizeof is);
}

static int is_bucket_of_shape(sqlite3_stmt *row)
{
    int dtype = rf_dtype_parse(rfi_column(row, 4));
    sqlite3_int64 rows = sqlite3_column_int64(row, 6), hidden = sqlite3_column_int64(row, 7);
    uint64_t bytes = 0;
    if (dtype < 0 || rows <= 0 || hidden <= 0 ||
        __builtin_mul_overflow((uint64_t)rows, (uint64_t)hidden, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)rf_dtype_size((rf_dtype)dtype), &bytes))
        return 0;
    return (uint64_t)sqlite3_column_int64(row, 8) == rfi_bucket(bytes);
}

/* What the tuner records lies between 0 and these. */
static const struct {
    const char *table;
    int column;
    double most;
    const char *fault;
} numbers[] = {
    {"variant", 3, 64, "has an impossible world"},
    {"variant", 5, UINT32_MAX, "has an impossible hidden size"},
    {"variant", 11, UINT16_MAX, "has an impossible number of threads"},
    {"variant", 12, UINT16_MAX, "has an impossible unroll"},
    {"variant", 13, UINT32_MAX, "has impossible flags"},
    {"shape", 1, UINT32_MAX, "has an impossible number"},
    {"measurement", 2, UINT32_MAX, "has an impossible number"},
    {"measurement", 4, UINT32_MAX, "has an impossible grid"},
    {"measurement", 6, UINT32_MAX, "has an impossible number of samples"},
    {"measurement", 7, UINT32_MAX, "has an impossible order_index"},
    {"measurement", 13, RFI_NS_MOST, "has an impossible noise"},
};

static const char *impossible_number(const rfi_table *table, sqlite3_stmt *row)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(table->name, numbers[i].table))
            continue;
        double value = sqlite3_column_double(row, numbers[i].column); /* NULL = 0 */
        if (!(value >= 0 && value <= numbers[i].most))
            return numbers[i].fault;
    }
    return NULL;
}

/* min, p10, median, p90, max: each at least the one before; one that is too long is missing. Only
 * the baseline ran on no grid. */
static const char *impossible_result(sqlite3_stmt *row)
{
    const int first = 8, median = 10, last = 12;
    int ok = !strcmp(rfi_column(row, 5), "ok");
    double before = 0;
    for (int i = first; i <= last; i++) {
        if (sqlite3_column_type(row, i) == SQLITE_NULL)
            continue;
        double ns = sqlite3_column_double(row, i);
        if (!ok)
            return "has a time, though it failed";
        if (!(ns >= before && ns <= RFI_NS_MOST))
            return "has impossible times";
        before = ns;
    }
    if (ok && !(sqlite3_column_double(row, median) > 0 && sqlite3_column_int64(row, 6) > 0))
        return "is of nothing that was measured";
    if (ok && !sqlite3_column_int64(row, 4) && strcmp(rfi_column(row, 3), RFI_BASELINE_HASH))
        return "has an impossible grid";
    return NULL;
}

const char *rfi_row_fault(const rfi_table *table, sqlite3_stmt *row)
{
    if (has_control(row, table->columns))
        return "has a control character in a text";
    if ((!strcmp(table->name, "host") || !strcmp(table->name, "environment")) &&
        !is_hash_of_text(row))
        return "has a fingerprint that is not the hash of its text";
    if (!strcmp(table->name, "shape") && !is_bucket_of_shape(row))
        return "has a bucket that does not follow from its size";
    const char *fault = impossible_number(table, row);
    return fault || strcmp(table->name, "measurement") ? fault : impossible_result(row);
}

/* ---- what should not leave the machine ---- */

/* Does `text` begin with this pattern? 'h' = a hex digit; anything else stands for itself. */
static int matches(const char *text, const char *pattern)
{
    for (; *pattern; text++, pattern++)
        if (*pattern == 'h' ? !isxdigit((unsigned char)*text) : *text != *pattern)
            return 0;
    return 1;
}

const char *rfi_private_part(const char *text)
{
    static const struct {
        const char *pattern, *what;
    } patterns[] = {
        {"hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh", "a UUID"},
        {"hhhh:hh:hh.h", "a bus address"},
        {"hh:hh:hh:hh:hh:hh", "a network address"},
    };
    static const char *const fields[] = {"hostname", "nodename",   "serial",
                                         "uuid",     "machine_id", "boot_id"};
    int field = 1; /* before the '=' of a line */
    for (const char *at = text; *at; at++) {
        field = at == text || at[-1] == '\n' ? 1 : field && *at != '=';
        int in_word = at > text && isxdigit((unsigned char)at[-1]);
        for (size_t i = 0; !in_word && i < sizeof patterns / sizeof *patterns; i++)
            if (matches(at, patterns[i].pattern))
                return patterns[i].what;
        for (size_t i = 0; field && i < sizeof fields / sizeof *fields; i++)
            if (!strncmp(at, fields[i], strlen(fields[i])) && at[strlen(fields[i])] == '=')
                return fields[i];
    }
    return NULL;
}
