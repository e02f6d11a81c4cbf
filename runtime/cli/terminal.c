#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/world.h"

double rf_cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void rf_cli_defuse(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            *c = c[1] = '?';
}

void rf_cli_error(const char *format, ...)
{
    char text[RF_CLI_MESSAGE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rf_cli_defuse(text);
    if (!rf_cli_world_hand_over(text))
        fprintf(stderr, "rankfold: %s\n", text);
}

int rf_cli_failed(const char *what, const rf_error *err)
{
    rf_cli_error("%s: %s", what, err->text[0] ? err->text : rf_strerror(err->code));
    return RF_CLI_FAILURE;
}

const char *rf_cli_s(uint64_t n)
{
    return n == 1 ? "" : "s";
}

int rf_cli_finish(int code)
{
    errno = 0; /* a write that failed before has lost it */
    int bad = ferror(stdout) | fflush(stdout);
    if (bad)
        rf_cli_error("cannot write the output%s%s", errno ? ": " : "",
                     errno ? strerror(errno) : "");
    return bad && code == RF_CLI_OK ? RF_CLI_FAILURE : code;
}

static int is_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && strcmp(term, "dumb") != 0;
}

static int has_colour(void)
{
    const char *no = getenv("NO_COLOR");
    return is_terminal(STDOUT_FILENO) && !(no && *no);
}

const char *rf_cli_style_of(rf_cli_style style)
{
    static const char *const codes[] = {
        [RF_CLI_PLAIN] = "\033[0m", [RF_CLI_BOLD] = "\033[1m", [RF_CLI_DIM] = "\033[2m",
        [RF_CLI_GOOD] = "\033[32m", [RF_CLI_BAD] = "\033[31m",
    };
    return has_colour() ? codes[style] : "";
}

const char *rf_cli_mark(int good)
{
    if (!has_colour())
        return good ? "✓" : "✗";
    return good ? "\033[32m✓\033[0m" : "\033[31m✗\033[0m";
}

/* ---- progress ---- */

static void show_line(rf_cli_progress *s, const rf_tune_progress *p, const char *shape)
{
    double now = rf_cli_seconds();
    if (s->dirty && now - s->last < 0.1)
        return;
    fprintf(stderr, "\r\033[K%3.0f%%  %zu/%zu %s  %s %.48s  %d:%02d left", p->done * 100,
            p->shape_index + 1, p->n_shapes, shape, p->phase, p->variant ? p->variant : "",
            (int)p->eta_seconds / 60, (int)p->eta_seconds % 60);
    fflush(stderr);
    s->last = now, s->dirty = 1;
}

void rf_cli_progress_show(void *ctx, const rf_tune_progress *p)
{
    rf_cli_progress *s = ctx;
    char shape[RF_CLI_SHAPE];
    rf_cli_shape_text(&p->shape, shape);
    if (is_terminal(STDERR_FILENO)) {
        show_line(s, p, shape);
    } else if (s->shape != p->shape_index + 1 && strcmp(p->phase, "decide") != 0) {
        fprintf(stderr, "tuning %zu/%zu %s (%.0f%%, %.0f s left)\n", p->shape_index + 1,
                p->n_shapes, shape, p->done * 100, p->eta_seconds);
        s->shape = p->shape_index + 1;
    }
}

void rf_cli_progress_end(rf_cli_progress *s)
{
    if (s->dirty)
        fputs("\r\033[K", stderr);
    s->dirty = 0;
}

void rf_cli_json_string(const char *text)
{
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    putchar('"');
}
