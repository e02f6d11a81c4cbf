#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "store/ladder.h"
#include "store/names.h"

/* ---- differences of two texts ---- */

typedef struct entry {
    const char *text;
    int field, length; /* of the key; of the whole line */
} entry;

static const char *next_line(const char *text, entry *out)
{
    if (!*text)
        return NULL;
    size_t length = strcspn(text, "\n");
    size_t field = strcspn(text, "=\n");
    *out = (entry){text, (int)(field < 200 ? field : 200), (int)(length < 400 ? length : 400)};
    return text + length + (text[length] == '\n');
}

static int same_field(const entry *a, const entry *b)
{
    return a->field == b->field && !memcmp(a->text, b->text, (size_t)a->field);
}

/* The line of `text` that corresponds to `wanted`, line `index` of another text: same field, same
 * count of that field before it (every rank has the same fields). */
static int counterpart(const char *other, int index, const entry *wanted, const char *text,
                       entry *out)
{
    int nth = 0;
    entry l;
    for (int i = 0; i < index && (other = next_line(other, &l)); i++)
        nth += same_field(&l, wanted);
    while ((text = next_line(text, out)))
        if (same_field(out, wanted) && nth-- == 0)
            return 1;
    return 0;
}

static void append(char *out, size_t size, const char *item)
{
    size_t used = strlen(out);
    if (strstr(out, item) || (used >= 3 && !strcmp(out + used - 3, "...")))
        return; /* several ranks report the same change; or full */
    const char *comma = used ? ", " : "";
    if (used + strlen(comma) + strlen(item) + sizeof ", ..." <= size)
        snprintf(out + used, size - used, "%s%s", comma, item);
    else
        snprintf(out + used, size - used, "%s...", comma);
}

static int value_width(const entry *l)
{
    int width = l->length - l->field - 1;
    return width < 0 ? 0 : width > 60 ? 60 : width;
}

/* "r0.kernel" shows as "kernel": what changed on one rank has mostly changed on all. */
static int rank_width(const entry *l)
{
    int digits = l->text[0] == 'r' ? (int)strspn(l->text + 1, "0123456789") : 0;
    return digits && l->text[1 + digits] == '.' && digits + 2 < l->field ? digits + 2 : 0;
}

#define FIELD(l) (l).field - rank_width(&(l)), (l).text + rank_width(&(l))
#define VALUE(l) value_width(&(l)), (l).text + (l).field + ((l).length > (l).field)

void rfi_text_difference(const char *then, const char *now, char *out, size_t size)
{
    char item[400];
    entry a, b;
    int index = 0;
    out[0] = '\0';
    for (const char *rest = then; (rest = next_line(rest, &a)); index++) {
        if (!counterpart(then, index, &a, now, &b))
            snprintf(item, sizeof item, "%.*s gone", FIELD(a));
        else if (a.length != b.length || memcmp(a.text, b.text, (size_t)a.length))
            snprintf(item, sizeof item, "%.*s %.*s -> %.*s", FIELD(a), VALUE(a), VALUE(b));
        else
            continue;
        append(out, size, item);
    }
    index = 0;
    for (const char *rest = now; (rest = next_line(rest, &b)); index++)
        if (!counterpart(now, index, &b, then, &a)) {
            snprintf(item, sizeof item, "%.*s new", FIELD(b));
            append(out, size, item);
        }
}

/* ---- environments ---- */

/* Lines without a rank: in which memory the ranks meet, and how a file groups them (create.c). */
#define TRANSPORTS "transports"
#define ISLANDS    "islands"

static int line_of(const char *field, const char *text, entry *out)
{
    const entry wanted = {field, (int)strlen(field), 0};
    return counterpart(text, 0, &wanted, text, out);
}

/* 1 = both texts have such a line, but not the same; 2 = only one of them has it. */
static int differ(const char *field, const char *a, const char *b)
{
    entry x, y;
    int in_a = line_of(field, a, &x), in_b = line_of(field, b, &y);
    if (in_a != in_b)
        return 2;
    return in_a && (x.length != y.length || memcmp(x.text, y.text, (size_t)x.length) != 0);
}

/* Measured over other transports than there are here, or, if tactics that sum by it are in the
 * row's set, in another grouping of the ranks: another machine, as far as the set goes. */
static int elsewhere(const rfi_source *source, const rfi_key *key, const rfi_row *row)
{
    const char *now = key->env->text;
    const char *then =
        memcmp(row->env, key->env->hash, 16) ? source->env_text(source->ctx, row->env) : NULL;
    return then && (differ(TRANSPORTS, then, now) == 1 ||
                    (row->admits & RF_VARIANT_REASSOC && differ(ISLANDS, then, now)));
}

/* But for the grouping, which is the last line: a row that sums by it has the same (elsewhere). */
static size_t length_of_env(const char *text)
{
    const char *line = strstr(text, "\n" ISLANDS "=");
    return line ? (size_t)(line + 1 - text) : strlen(text);
}

static int same_env(const rfi_source *source, const rfi_key *key, const rfi_row *row)
{
    if (!memcmp(row->env, key->env->hash, 16))
        return 1;
    const char *then = source->env_text(source->ctx, row->env), *now = key->env->text;
    const size_t n = length_of_env(now);
    return then && length_of_env(then) == n && !memcmp(then, now, n);
}

/* ---- the ladder ---- */

/* Appends to a line of fixed size; what doesn't fit is cut. */
__attribute__((format(printf, 3, 4))) static void put(char *line, size_t size, const char *format,
                                                      ...)
{
    size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, size - used, format, args);
    va_end(args);
}

static const char *name_of(rfi_list list, unsigned code)
{
    const char *name = rfi_name(list, code);
    return name ? name : "?";
}

/* The command that would measure this very shape. */
#define ADVICE 160
static void advise(const rfi_key *key, char out[ADVICE])
{
    snprintf(out, ADVICE, "; run `rankfold tune -n %u%s%s%s --shapes %s:%" PRIu64 "x%" PRIu64 "%s`",
             key->world, strncmp(key->arch, "cuda/", 5) ? "" : " --backend cuda",
             key->admits ? " --admit " : "", name_of(RFI_ADMITS, key->admits),
             name_of(RFI_DTYPES, key->dtype), key->rows, key->hidden,
             key->mode == RF_GRAPH ? ":graph" : "");
}

static void put_missing(const rfi_key *key, unsigned missing, char *line, size_t size)
{
    static const struct {
        unsigned flag;
        const char *text;
    } opt_ins[] = {{RF_VARIANT_REASSOC, "sums in another order"},
                   {RF_VARIANT_LOSSY, "rounding on the wire"},
                   {RF_VARIANT_DEPENDENT, "dependent launch"}};
    entry islands;
    for (size_t i = 0; i < sizeof opt_ins / sizeof *opt_ins; i++) {
        if (!(missing & opt_ins[i].flag))
            continue;
        put(line, size, ", %s not measured", opt_ins[i].text);
        if (opt_ins[i].flag == RF_VARIANT_REASSOC && line_of(ISLANDS, key->env->text, &islands))
            put(line, size, " in the %.*s of RANKFOLD_TOPOLOGY", islands.length, islands.text);
    }
}

static void explain(const rfi_source *source, const rfi_key *key, const rfi_row *row, rf_rung rung,
                    rfi_decision *out)
{
    char *line = out->reason, advice[ADVICE] = "";
    const size_t size = sizeof out->reason;
    if (rung != RF_RUNG_EXACT)
        advise(key, advice);

    put(line, size, source->shipped ? "shipped: measured" : "measured here");
    if (row->day[0])
        put(line, size, " on %s", row->day);
    int differs = row->measured_rows != key->rows || row->measured_hidden != key->hidden;
    if (row->measured_rows && differs) /* one decision serves all shapes of a bucket */
        put(line, size, " at %" PRIu64 " x %" PRIu64, row->measured_rows, row->measured_hidden);
    else if (!row->hidden && differs)
        put(line, size, " with another hidden size");
    if (row->bucket != rfi_bucket(key->bytes))
        put(line, size, "%s %" PRIu64 " B, the nearest to %" PRIu64 " B",
            row->measured_rows ? "," : " at", row->bucket, rfi_bucket(key->bytes));
    put_missing(key, key->admits & ~row->admits, line, size);
    if (rung == RF_RUNG_OTHER_HASH)
        put(line, size, ", stale: with an earlier build of the variant");
    if (!same_env(source, key, row)) {
        const char *then = source->env_text(source->ctx, row->env);
        const char *now = key->env->text;
        put(line, size, ", stale: the environment differs");
        size_t used = strlen(line) + 2;
        if (then && now && used + strlen(advice) + 16 < size) {
            put(line, size, ": ");
            rfi_text_difference(then, now, line + used, size - used - strlen(advice));
        }
    }
    put(line, size, "%s", advice);
    for (char *c = line; *c; c++) /* texts of a file that anybody may have edited: one line */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

static int answer(const rfi_source *source, const rfi_key *key, const rfi_row *row, rf_rung rung,
                  rfi_decision *out)
{
    memset(out, 0, sizeof *out);
    out->fallback = !strcmp(row->variant, RFI_BASELINE);
    if (!out->fallback) {
        memcpy(out->variant, row->variant, sizeof out->variant);
        memcpy(out->hash, row->hash, sizeof out->hash);
        out->grid = row->grid;
    }
    out->bucket = row->bucket;
    out->median_ns = row->median_ns;
    out->baseline_ns = row->baseline_ns;
    out->measured_rows = row->measured_rows;
    out->measured_hidden = row->measured_hidden;
    explain(source, key, row, rung, out);
    out->rung = source->shipped ? RF_RUNG_SHIPPED : rung;
    return 1;
}

/* One question to a source, and who has to have the answer. */
typedef struct search {
    const rfi_source *source;
    const rfi_key *key;
    rfi_have_fn have;
    void *ctx;
} search;

/* 2 = *out holds a row, and the variant is here in this very build; 1 = in another build; 0 = none.
 */
static int fetch(const search *s, uint64_t hidden, unsigned admits, rfi_pick pick, rfi_row *out)
{
    rfi_key key = *s->key;
    key.hidden = hidden;
    key.admits = (uint8_t)admits;
    if (!s->source->fetch(s->source->ctx, &key, pick, out))
        return 0;
    out->hidden = hidden;
    out->admits = admits;
    if (elsewhere(s->source, s->key, out))
        return 0;
    return strcmp(out->variant, RFI_BASELINE) ? s->have(s->ctx, out->hash, out->variant) : 2;
}

/* What was decided at the key's bucket for callers that admit `admits`. */
static int at_this_size(const search *s, unsigned admits, rfi_row *out, rf_rung *rung)
{
    static const rfi_pick picks[] = {RFI_SAME_ENV, RFI_OTHER_ENV};
    const uint64_t hidden[] = {s->key->hidden, 0};
    rfi_row row;
    int found_other_build = 0;
    for (size_t i = 0; i < 2; i++)
        for (size_t h = 0; h < 2; h++) {
            int level = fetch(s, hidden[h], admits, picks[i], &row);
            if (level == 2) {
                *out = row;
                *rung = same_env(s->source, s->key, &row) ? RF_RUNG_EXACT : RF_RUNG_OTHER_ENV;
                return 1;
            }
            if (level == 1 && !found_other_build) {
                found_other_build = 1;
                *out = row;
                *rung = RF_RUNG_OTHER_HASH;
            }
        }
    return found_other_build;
}

/* Subsets of `of`, it itself first, the empty one last; each before its own subsets. */
static int next_subset(int set, int of)
{
    return set ? (set - 1) & of : -1;
}

/* Farther away, what was best there says less than a default of the class: other tactics win. */
#define FARTHEST 4

/* Buckets are powers of two, so the distance is a ratio; at the same distance the larger set, the
 * exact hidden size, the smaller bucket. */
static int nearest(const search *s, rfi_row *out)
{
    const uint64_t asked = rfi_bucket(s->key->bytes), hidden[] = {s->key->hidden, 0};
    uint64_t distance = UINT64_MAX;
    rfi_row row;
    for (int set = s->key->admits; set >= 0; set = next_subset(set, s->key->admits))
        for (size_t h = 0; h < 2; h++)
            for (rfi_pick pick = RFI_BELOW; pick <= RFI_ABOVE; pick++) {
                if (!fetch(s, hidden[h], (unsigned)set, pick, &row))
                    continue;
                uint64_t ratio = pick == RFI_BELOW ? asked / row.bucket : row.bucket / asked;
                if (ratio < distance) {
                    distance = ratio;
                    *out = row;
                }
            }
    return distance <= FARTHEST;
}

int rfi_ladder(const rfi_source *source, const rfi_key *key, rfi_have_fn have, void *ctx,
               rfi_decision *out)
{
    const search s = {source, key, have, ctx};
    rfi_row row;
    rf_rung rung;
    for (int set = key->admits; set >= 0; set = next_subset(set, key->admits))
        if (at_this_size(&s, (unsigned)set, &row, &rung))
            return answer(source, key, &row, set == key->admits ? rung : RF_RUNG_PARTIAL, out);
    return nearest(&s, &row) && answer(source, key, &row, RF_RUNG_NEAREST, out);
}

void rfi_ladder_missed(const rfi_key *key, rfi_decision *out)
{
    char advice[ADVICE];
    memset(out, 0, sizeof *out);
    out->rung = RF_RUNG_CLASS;
    out->bucket = rfi_bucket(key->bytes);
    advise(key, advice);
    put(out->reason, sizeof out->reason,
        "nothing measured on this hardware (%.16s) for op %s, dtype %s, mode %s, world %u at a "
        "like size%s",
        key->arch, name_of(RFI_OPS, key->op), name_of(RFI_DTYPES, key->dtype),
        name_of(RFI_MODES, key->mode), key->world, advice);
}
