#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define MAX_LIST   256
#define MAX_SHAPES 4096
#define MAX_BYTES  (UINT64_C(1) << 40) /* of a tensor: the library's limit of a capacity */

/* A whole number from 1 with an optional K, M or G (powers of 1024); returns where it ended, NULL
 * if it is none. */
static const char *number(const char *text, uint64_t *out)
{
    static const char suffixes[] = "KMG";
    char *end;
    if (*text < '0' || *text > '9')
        return NULL;
    uint64_t n = strtoull(text, &end, 10);
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;
    unsigned shift = suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;
    if (n == 0 || n > UINT64_MAX >> shift >> 8)
        return NULL;
    *out = n << shift;
    return end + (suffix != NULL);
}

static const char *const modes[] = {[RF_EAGER] = "eager", [RF_GRAPH] = "graph"};

int rf_cli_shape_parse(const char *text, rf_shape *out)
{
    char dtype[8];
    const char *colon = strchr(text, ':');
    rf_shape s = {.op = RF_ALL_REDUCE, .rows = 1};
    if (!colon || (size_t)(colon - text) >= sizeof dtype)
        return 0;
    snprintf(dtype, sizeof dtype, "%.*s", (int)(colon - text), text);
    int code = rf_dtype_parse(dtype);
    const char *p = number(colon + 1, &s.hidden);
    if (code < 0 || !p)
        return 0;
    if (*p == 'x') {
        s.rows = s.hidden;
        p = number(p + 1, &s.hidden);
    }
    if (p && strcmp(p, ":graph") == 0)
        s.mode = RF_GRAPH;
    else if (!p || (*p && strcmp(p, ":eager") != 0))
        return 0;
    s.dtype = (rf_dtype)code;
    *out = s;
    return 1;
}

int rf_cli_shape_fits(const rf_shape *s)
{
    char shape[RF_CLI_SHAPE];
    if (s->rows <= MAX_BYTES / rf_dtype_size(s->dtype) / s->hidden)
        return 1;
    rf_cli_error("%s is too large: a tensor has 1 TiB at most", rf_cli_shape_text(s, shape));
    return 0;
}

const char *rf_cli_shape_text(const rf_shape *s, char out[RF_CLI_SHAPE])
{
    snprintf(out, RF_CLI_SHAPE, "%s:%llux%llu%s", rf_dtype_name(s->dtype),
             (unsigned long long)s->rows, (unsigned long long)s->hidden,
             s->mode == RF_GRAPH ? ":graph" : "");
    return out;
}

uint64_t rf_cli_shape_bytes(const rf_shape *s)
{
    return s->rows * s->hidden * rf_dtype_size(s->dtype);
}

uint64_t rf_cli_shapes_largest(const rf_cli_shapes *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n; i++)
        if (rf_cli_shape_bytes(&s->list[i]) > bytes)
            bytes = rf_cli_shape_bytes(&s->list[i]);
    return bytes;
}

const char *rf_cli_bytes_text(uint64_t bytes, char out[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    size_t u = 0;
    double n = (double)bytes;
    while (n >= 1024 && u + 1 < sizeof units / sizeof *units)
        n /= 1024, u++;
    snprintf(out, 24, n == (double)(uint64_t)n ? "%.0f %s" : "%.1f %s", n, units[u]);
    return out;
}

/* ---- lists ---- */

/* Calls take(ctx, item) for each item of a list with commas; 0 at the first that it does not take:
 * 0 = it is no such thing (named in an error), -1 = said already. */
static int each(const char *option, const char *list, int (*take)(void *ctx, const char *item),
                void *ctx, const char *expected)
{
    char item[64];
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        snprintf(item, sizeof item, "%.*s", (int)(n < sizeof item ? n : sizeof item - 1), p);
        int taken = take(ctx, item);
        if (taken == 0)
            rf_cli_error("--%s: found '%s', expected %s", option, item, expected);
        if (taken <= 0)
            return 0;
        p += n;
        if (!*p)
            return 1;
    }
}

typedef struct numbers {
    uint64_t at[MAX_LIST];
    size_t n;
} numbers;

static int take_number(void *ctx, const char *item)
{
    numbers *list = ctx;
    const char *end = list->n < MAX_LIST ? number(item, &list->at[list->n]) : NULL;
    list->n++;
    return end && *end == 0;
}

static int take_dtype(void *ctx, const char *item)
{
    numbers *list = ctx;
    int code = list->n < MAX_LIST ? rf_dtype_parse(item) : -1;
    list->at[list->n++ % MAX_LIST] = (uint64_t)code;
    return code >= 0;
}

static int take_mode(void *ctx, const char *item)
{
    numbers *list = ctx;
    int both = strcmp(item, "both") == 0;
    size_t before = list->n;
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        if (list->n < MAX_LIST && (both || strcmp(item, modes[m]) == 0))
            list->at[list->n++] = m;
    return list->n > before;
}

static int add(rf_cli_shapes *s, const rf_shape *shape)
{
    if (s->n == MAX_SHAPES)
        rf_cli_error("more than %d shapes", MAX_SHAPES);
    if (s->n == MAX_SHAPES || !rf_cli_shape_fits(shape))
        return 0;
    s->list[s->n++] = *shape;
    return 1;
}

static int take_shape(void *ctx, const char *item)
{
    rf_shape shape;
    if (!rf_cli_shape_parse(item, &shape))
        return 0;
    return add(ctx, &shape) ? 1 : -1;
}

/* hidden x rows x dtype x mode, or bytes x dtype x mode. */
static int product(rf_cli_shapes *s)
{
    static const char numbers_text[] = "whole numbers from 1, such as 512, 64K, 2M";
    numbers hidden = {0}, rows = {0}, dtypes = {0}, bytes = {0}, mode = {0};
    const char *dtype = s->dtype ? s->dtype : "bf16,f32";
    const char *row = s->rows ? s->rows : "1,4,16,64,256";
    if (!each("dtype", dtype, take_dtype, &dtypes, "f32, bf16 or f16") ||
        !each("mode", s->mode ? s->mode : "eager", take_mode, &mode, "eager, graph or both") ||
        !each("hidden", s->hidden ? s->hidden : "4096", take_number, &hidden, numbers_text) ||
        !each("rows", row, take_number, &rows, numbers_text) ||
        (s->bytes && !each("bytes", s->bytes, take_number, &bytes, numbers_text)))
        return 0;
    if (s->bytes)
        rows = (numbers){.at = {1}, .n = 1};
    size_t widths = s->bytes ? bytes.n : hidden.n;
    for (size_t m = 0; m < mode.n; m++)
        for (size_t d = 0; d < dtypes.n; d++)
            for (size_t h = 0; h < widths; h++)
                for (size_t r = 0; r < rows.n; r++) {
                    rf_dtype t = (rf_dtype)dtypes.at[d];
                    uint64_t width = s->bytes ? bytes.at[h] / rf_dtype_size(t) : hidden.at[h];
                    rf_shape shape = {RF_ALL_REDUCE, t, (rf_mode)mode.at[m], rows.at[r], width};
                    if (width == 0)
                        rf_cli_error("--bytes %llu: expected at least one %s",
                                     (unsigned long long)bytes.at[h], rf_dtype_name(t));
                    if (width == 0 || !add(s, &shape))
                        return 0;
                }
    return 1;
}

int rf_cli_shapes_read(rf_cli_shapes *s)
{
    int has_product = s->hidden || s->rows || s->dtype || s->bytes || s->mode;
    if ((s->shapes && has_product) || (s->bytes && (s->hidden || s->rows))) {
        rf_cli_error("give the shapes one way: --shapes, or --bytes, or --hidden and --rows; "
                     "--dtype and --mode go with the latter two");
        return RF_CLI_USAGE;
    }
    s->n = 0;
    s->list = malloc(MAX_SHAPES * sizeof *s->list);
    if (!s->list) {
        rf_cli_error("out of memory");
        return RF_CLI_USAGE;
    }
    int ok = s->shapes ? each("shapes", s->shapes, take_shape, s,
                              "dtype:rows x hidden, such as bf16:16x4096 or f32:1x4096:graph")
                       : product(s);
    return ok ? RF_CLI_OK : RF_CLI_USAGE;
}

void rf_cli_shapes_free(rf_cli_shapes *s)
{
    free(s->list);
    s->list = NULL, s->n = 0;
}
