#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/env.h"
#include "core/group.h"
#include "core/islands.h"

#define STEP "arguments"

/* ---- the file ---- */

/* Some of a text that anybody may have written, for an error. */
static const char *quote(const char *text, size_t bytes, char out[64])
{
    size_t n = bytes < 60 ? bytes : 60;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    snprintf(out + n, 4, "%s", n < bytes ? "..." : "");
    return out;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static size_t skip_blanks(const char *line, size_t n, size_t at)
{
    while (at < n && is_blank(line[at]))
        at++;
    return at;
}

/* A number of at most three digits at `at`: where it ends, or `at`. */
static size_t read_number(const char *line, size_t n, size_t at, unsigned *out)
{
    size_t end = at;
    *out = 0;
    while (end < n && end < at + 3 && line[end] >= '0' && line[end] <= '9')
        *out = *out * 10 + (unsigned)(line[end++] - '0');
    return end;
}

/* "RANK ISLAND" and nothing else. */
static int parse_line(const char *line, size_t n, unsigned *rank, unsigned *island)
{
    size_t end = read_number(line, n, 0, rank), second = skip_blanks(line, n, end);
    size_t last = read_number(line, n, second, island);
    return end > 0 && second > end && last > second && skip_blanks(line, n, last) == n;
}

rf_result rfi_topology_parse(const char *name, const char *text, size_t bytes, rfi_topology *out,
                             rf_error *err)
{
    char found[64];
    int line_of[RF_MAX_WORLD] = {0}; /* 0 = none */
    rfi_topology t = {0};
    int number = 0;
    for (size_t at = 0, next; at < bytes; at = next) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        next = at + n + 1;
        number++;
        const char *comment = memchr(text + at, '#', n);
        n = comment ? (size_t)(comment - text) - at : n;
        size_t blanks = skip_blanks(text + at, n, 0);
        const char *line = text + at + blanks;
        unsigned rank, island;
        n -= blanks;
        if (!n)
            continue;
        if (!parse_line(line, n, &rank, &island))
            return rfi_fail(err, RF_E_ARG, -1, STEP,
                            "%s, line %d is \"%s\", expected a rank and its island, two numbers",
                            name, number, quote(line, n, found));
        if (rank >= RF_MAX_WORLD || island > UINT8_MAX)
            return rfi_fail(err, RF_E_ARG, -1, STEP,
                            "%s, line %d: rank %u on island %u, expected 0 to %d and 0 to %d", name,
                            number, rank, island, RF_MAX_WORLD - 1, UINT8_MAX);
        if (line_of[rank])
            return rfi_fail(err, RF_E_ARG, -1, STEP,
                            "%s, line %d: rank %u again, line %d has it already", name, number,
                            rank, line_of[rank]);
        line_of[rank] = number;
        t.island[rank] = (uint8_t)island;
        t.ranks = (int)rank >= t.ranks ? (int)rank + 1 : t.ranks;
    }
    if (!t.ranks)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "%s has no rank in it", name);
    for (int r = 0; r < t.ranks; r++)
        if (!line_of[r])
            return rfi_fail(err, RF_E_ARG, -1, STEP, "%s has no line for rank %d, but for rank %d",
                            name, r, t.ranks - 1);
    *out = t;
    return RF_OK;
}

rf_result rfi_topology_read(rfi_topology *out, rf_error *err)
{
    const char *path = rfi_env_get(RFI_RANKFOLD_TOPOLOGY);
    char name[128], quoted[64], text[RFI_TOPOLOGY_BYTES + 1];
    *out = (rfi_topology){0};
    if (!path)
        return RF_OK;
    snprintf(name, sizeof name, "RANKFOLD_TOPOLOGY=%s", quote(path, strlen(path), quoted));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "%s: %s", name, strerror(errno));
    struct stat s;
    size_t n = 0;
    ssize_t got = 0;
    int plain = !fstat(fd, &s) && S_ISREG(s.st_mode);
    while (plain && n < sizeof text && (got = read(fd, text + n, sizeof text - n)) > 0)
        n += (size_t)got;
    int error = errno;
    close(fd);
    if (!plain)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "%s is no plain file", name);
    if (got < 0)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "%s: %s", name, strerror(error));
    if (n > RFI_TOPOLOGY_BYTES)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "%s is longer than %d bytes", name,
                        RFI_TOPOLOGY_BYTES);
    return rfi_topology_parse(name, text, n, out, err);
}

/* ---- the grouping ---- */

/* Ranks with equal numbers are on one island: returns how many there are, and their sizes in the
 * order of their first ranks. */
static int count_islands(const uint8_t *island, int world, int size[RF_MAX_WORLD])
{
    int n = 0, first[RF_MAX_WORLD];
    for (int r = 0; r < world; r++) {
        int i = 0;
        while (i < n && island[first[i]] != island[r])
            i++;
        if (i == n) {
            first[n] = r;
            size[n++] = 0;
        }
        size[i]++;
    }
    return n;
}

/* Are these two of as many ranks each? Else says what they are. */
static int settle(const uint8_t *island, int world, const char *source, rf_islands_info *out)
{
    int size[RF_MAX_WORLD], at[2] = {0, world / 2};
    int n = count_islands(island, world, size);
    if (n != 2)
        snprintf(out->reason, sizeof out->reason, "%s: expected 2 islands, found %d", source, n);
    else if (size[0] != size[1])
        snprintf(out->reason, sizeof out->reason, "%s: expected equal islands, found %d and %d",
                 source, size[0], size[1]);
    else
        out->on = 1;
    for (int r = 0; out->on && r < world; r++)
        out->order[at[island[r] != island[0]]++] = (uint8_t)r;
    if (out->on)
        snprintf(out->reason, sizeof out->reason, "%s", source);
    return n;
}

/* Else says so, behind `source`. */
static int can_be_parted(int world, const char *source, rf_islands_info *out)
{
    *out = (rf_islands_info){0};
    if (world >= 4 && world % 2 == 0)
        return 1;
    snprintf(out->reason, sizeof out->reason, "%sa world of %d is not parted, one of 4, 6 or 8 is",
             source, world);
    return 0;
}

void rfi_islands_from_file(const rfi_topology *topology, int world, rf_islands_info *out)
{
    if (!can_be_parted(world, "RANKFOLD_TOPOLOGY is not used: ", out))
        return;
    if (topology->ranks == world)
        settle(topology->island, world, "RANKFOLD_TOPOLOGY", out);
    else
        snprintf(out->reason, sizeof out->reason,
                 "RANKFOLD_TOPOLOGY: for a world of %d, this is one of %d", topology->ranks, world);
}

/* Ranks that are at most so far from each other, from one to the next, get the same number. */
static void join_near(uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD], int world, unsigned far,
                      uint8_t island[RF_MAX_WORLD])
{
    for (int r = 0; r < world; r++)
        island[r] = (uint8_t)r;
    for (int a = 0; a < world; a++)
        for (int b = 0; b < a; b++) {
            uint8_t from = island[a], to = island[b];
            if (distance[a][b] > far || distance[b][a] > far)
                continue;
            for (int r = 0; r < world; r++)
                island[r] = island[r] == from ? to : island[r];
        }
}

/* The least distance beyond `far`; 0 = there is none. */
static unsigned next_distance(uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD], int world, unsigned far)
{
    unsigned next = 0;
    for (int a = 0; a < world; a++)
        for (int b = 0; b < world; b++)
            if (a != b && distance[a][b] > far && (!next || distance[a][b] < next))
                next = distance[a][b];
    return next;
}

void rfi_islands_from_links(uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD], int world,
                            rf_islands_info *out)
{
    uint8_t island[RF_MAX_WORLD];
    if (!can_be_parted(world, "", out))
        return;
    for (int a = 0; a < world; a++)
        for (int b = 0; b < world; b++)
            if (a != b && !distance[a][b]) {
                snprintf(out->reason, sizeof out->reason,
                         "how near ranks %d and %d are is not known", a, b);
                return;
            }
    unsigned nearest = next_distance(distance, world, 0);
    if (!next_distance(distance, world, nearest)) {
        snprintf(out->reason, sizeof out->reason, "all ranks are equally near");
        return;
    }
    /* from many islands to one, as more counts as near: the last that are no single one */
    for (unsigned far = nearest; far && !out->on; far = next_distance(distance, world, far)) {
        rf_islands_info before = *out;
        join_near(distance, world, far, island);
        if (settle(island, world, "links", out) == 1) {
            *out = before;
            break;
        }
    }
    if (!out->reason[0])
        snprintf(out->reason, sizeof out->reason, "links: those that are near join all ranks");
}

void rfi_islands_text(const rf_islands_info *islands, int world, char text[RFI_ISLANDS_TEXT])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; islands->on && i < world; i++)
        used += (size_t)snprintf(text + used, RFI_ISLANDS_TEXT - used, "%s%d",
                                 i == 0           ? ""
                                 : i == world / 2 ? "|"
                                                  : ",",
                                 islands->order[i]);
}
