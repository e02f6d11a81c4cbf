#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define MAX_OPTIONS 32
#define HELP_COLUMN 24

static void print_option(const rf_cli_option *o)
{
    char left[64];
    int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof left, "      --%s", o->name);
    if (o->value)
        snprintf(left + n, sizeof left - (size_t)n, " %s", o->value);
    printf("%-*s  %s\n", HELP_COLUMN, left, o->help);
}

static void print_help(const rf_cli_syntax *s)
{
    static const rf_cli_option help = {"help", 'h', NULL, RF_CLI_FLAG, NULL, "this text"};
    printf("Usage: rankfold %s %s\n\n%s\n\nOptions:\n", s->command, s->arguments, s->text);
    for (size_t i = 0; i < s->n; i++)
        print_option(&s->options[i]);
    print_option(&help);
}

static int number(const char *text, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return 0;
    unsigned long long n = strtoull(text, &end, 10);
    *out = n;
    return *end == 0 && n > 0 && n < UINT64_MAX;
}

static int rounds(const char *text, uint32_t *out)
{
    uint64_t n;
    if (!number(text, &n) || n > RF_CLI_MOST_ROUNDS)
        return 0;
    *out = (uint32_t)n;
    return 1;
}

static int milliseconds(const char *text, uint32_t *out)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 60e3}, {"h", 3600e3}};
    char *end;
    size_t digits = strspn(text, "0123456789.");
    double n = strtod(text, &end);
    if (!digits || end != text + digits)
        return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0 && n * units[i].ms >= 1 &&
            n * units[i].ms < UINT32_MAX) {
            *out = (uint32_t)(n * units[i].ms);
            return 1;
        }
    return 0;
}

static int backend(const char *text, rf_backend_kind *out)
{
    static const char *const names[] = {[RF_BACKEND_CPU] = "cpu", [RF_BACKEND_CUDA] = "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (rf_backend_kind)i;
            return 1;
        }
    return 0;
}

/* "lossy,dependent" */
static int admitted(const char *text, uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t flag;
    } names[] = {{"reassoc", RF_REASSOC}, {"lossy", RF_LOSSY}, {"dependent", RF_DEPENDENT}};
    const size_t n = sizeof names / sizeof *names;
    *out = 0;
    for (;; text++) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < n && (strlen(names[i].name) != length || strncmp(names[i].name, text, length)))
            i++;
        if (i == n)
            return 0;
        *out |= names[i].flag;
        text += length;
        if (!*text)
            return 1;
    }
}

static int ranks(const char *text, uint64_t *out)
{
    return number(text, out) && *out <= RF_CLI_MOST_RANKS;
}

/* 1 = stored. */
static int store(const rf_cli_option *o, const char *text)
{
    switch (o->kind) {
    case RF_CLI_FLAG:
        *(int *)o->into = 1;
        return 1;
    case RF_CLI_TEXT:
        *(const char **)o->into = text;
        return 1;
    case RF_CLI_NUMBER:
        return number(text, o->into);
    case RF_CLI_RANKS:
        return ranks(text, o->into);
    case RF_CLI_ROUNDS:
        return rounds(text, o->into);
    case RF_CLI_TIME:
        return milliseconds(text, o->into);
    case RF_CLI_BACKEND:
        return backend(text, o->into);
    case RF_CLI_ADMIT:
        return admitted(text, o->into);
    }
    return 0;
}

static int usage(const rf_cli_syntax *s)
{
    fprintf(stderr, "Try 'rankfold %s --help'.\n", s->command);
    return RF_CLI_USAGE;
}

int rf_cli_parse(const rf_cli_syntax *s, int argc, char **argv, int *rest)
{
    static const char *const expected[] = {[RF_CLI_NUMBER] = "a whole number from 1",
                                           [RF_CLI_RANKS] = "1 to 8 ranks",
                                           [RF_CLI_ROUNDS] = "a whole number from 1 to 1000",
                                           [RF_CLI_TIME] = "a time such as 90, 500ms or 2m",
                                           [RF_CLI_BACKEND] = "cpu or cuda",
                                           [RF_CLI_ADMIT] = "a list of reassoc, lossy, dependent"};
    struct option longs[MAX_OPTIONS + 2] = {0};
    char shorts[2 * MAX_OPTIONS + 4] = ":h", *end = shorts + 2;
    for (size_t i = 0; i < s->n && i < MAX_OPTIONS; i++) {
        const rf_cli_option *o = &s->options[i];
        longs[i] = (struct option){o->name, o->value ? required_argument : no_argument, NULL,
                                   (int)(256 + i)};
        if (o->letter) {
            *end++ = o->letter;
            if (o->value)
                *end++ = ':';
        }
    }
    longs[s->n] = (struct option){"help", no_argument, NULL, 'h'};
    optind = 0; /* GNU: start anew */
    for (;;) {
        int c = getopt_long(argc, argv, shorts, longs, NULL);
        if (c == -1)
            break;
        if (c == 'h') {
            print_help(s);
            return RF_CLI_OK;
        }
        if (c == '?' || c == ':') {
            const char letter[] = {'-', (char)optopt, 0}; /* 0 or from 256 on: a long option */
            rf_cli_error("%s: %s '%s'", s->command,
                         c == ':' ? "a value is missing behind" : "unknown option",
                         optopt > 0 && optopt < 256 ? letter : argv[optind - 1]);
            return usage(s);
        }
        const rf_cli_option *o = s->options;
        while (c >= 256 ? o != &s->options[c - 256] : o->letter != c)
            o++;
        if (!store(o, optarg)) {
            rf_cli_error("%s: --%s: found '%s', expected %s", s->command, o->name, optarg,
                         expected[o->kind]);
            return usage(s);
        }
    }
    int n = argc - optind;
    if (n < s->min_rest || n > s->max_rest) {
        if (n > s->max_rest)
            rf_cli_error("%s: unexpected argument '%s'", s->command, argv[optind + s->max_rest]);
        else
            rf_cli_error("%s: an argument is missing: rankfold %s %s", s->command, s->command,
                         s->arguments);
        return usage(s);
    }
    *rest = optind;
    return -1;
}
