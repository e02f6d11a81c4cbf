#include <stdlib.h>
#include <string.h>

#include "store/fold.h"

int rfi_beats(const rfi_candidate *challenger, const rfi_candidate *incumbent)
{
    /* Three median absolute deviations are two standard deviations of a normal distribution; one
     * per cent is what clocks and placement move by without being noise within a session. Noise of
     * more than half the time protects nothing: who was measured on a busy machine would stay. */
    double noise =
        challenger->noise_ns > incumbent->noise_ns ? challenger->noise_ns : incumbent->noise_ns;
    double margin = 3 * noise;
    if (margin < 0.01 * incumbent->median_ns)
        margin = 0.01 * incumbent->median_ns;
    if (margin > 0.5 * incumbent->median_ns)
        margin = 0.5 * incumbent->median_ns;
    return incumbent->median_ns - challenger->median_ns > margin;
}

static int order_by_identity(const rfi_candidate *a, const rfi_candidate *b)
{
    int order = strcmp(a->name, b->name);
    return order ? order : (a->grid > b->grid) - (a->grid < b->grid);
}

/* By identity, the latest first: the array of candidates is in order of time. */
static int order_latest_first(const void *left, const void *right)
{
    const rfi_candidate *a = *(const rfi_candidate *const *)left;
    const rfi_candidate *b = *(const rfi_candidate *const *)right;
    int order = order_by_identity(a, b);
    return order ? order : (a < b) - (a > b);
}

static int faster(const rfi_candidate *a, const rfi_candidate *b)
{
    if (a->median_ns != b->median_ns)
        return a->median_ns < b->median_ns;
    return order_by_identity(a, b) < 0;
}

static int same_place(const rfi_trial *a, const rfi_trial *b)
{
    return a->rows == b->rows && a->hidden == b->hidden && !strcmp(a->env, b->env);
}

int rfi_settles(unsigned *looked, unsigned flags, unsigned admits)
{
    if (flags & ~admits)
        return 0; /* it did not look at them */
    for (unsigned set = 0; set <= RFI_OPT_INS; set++)
        if (*looked >> set & 1 && !(set & ~admits))
            return 1;
    *looked |= 1u << admits;
    return 0;
}

/* Collects what sweep `at` is judged by, of what is admitted; returns the number of distinct
 * candidates. */
static size_t gather(const rfi_trial *trials, size_t at, const rfi_candidate *candidates,
                     unsigned admits, const rfi_candidate **window)
{
    unsigned looked[RFI_OPT_INS + 1] = {0}, settled[RFI_OPT_INS + 1] = {0}; /* by flags */
    size_t n = 0, kept = 0;
    for (size_t t = at + 1; t-- > 0;) {
        if (!same_place(&trials[t], &trials[at]))
            continue;
        for (unsigned f = 0; trials[t].swept && f <= RFI_OPT_INS; f++)
            settled[f] |= (unsigned)rfi_settles(&looked[f], f, trials[t].admits);
        for (size_t i = 0; i < trials[t].count; i++) {
            const rfi_candidate *c = &candidates[trials[t].first + i];
            if (!(c->flags & ~admits) && !settled[c->flags])
                window[n++] = c;
        }
    }
    qsort(window, n, sizeof *window, order_latest_first);
    for (size_t i = 0; i < n; i++)
        if (!kept || order_by_identity(window[kept - 1], window[i]))
            window[kept++] = window[i];
    return kept;
}

/* One step of the fold: who holds the key after a sweep with these candidates; NULL = nobody. */
static const rfi_candidate *judge(const rfi_candidate *incumbent,
                                  const rfi_candidate *const *window, size_t n,
                                  const rfi_candidate **runner_up)
{
    const rfi_candidate *best = NULL, *held = NULL;
    for (size_t i = 0; i < n; i++) {
        if (window[i]->outcome != RFI_OK)
            continue;
        if (!best || faster(window[i], best))
            best = window[i];
        if (incumbent && !order_by_identity(window[i], incumbent))
            held = window[i];
    }
    if (held && best != held && !rfi_beats(best, held))
        best = held;

    *runner_up = NULL;
    for (size_t i = 0; i < n; i++)
        if (window[i]->outcome == RFI_OK && window[i] != best &&
            (!*runner_up || faster(window[i], *runner_up)))
            *runner_up = window[i];
    return best;
}

static const rfi_candidate *find_baseline(const rfi_candidate *const *window, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(window[i]->name, RFI_BASELINE))
            return window[i];
    return NULL;
}

/* Puts the choice of an environment in its place: out is sorted by environment. */
static size_t keep(const rfi_trial *trials, rfi_choice choice, rfi_choice *out, size_t n)
{
    size_t at = 0;
    int order = 1;
    while (at < n && (order = strcmp(trials[out[at].trial].env, trials[choice.trial].env)) < 0)
        at++;
    if (at == n || order) {
        memmove(out + at + 1, out + at, (n - at) * sizeof *out);
        n++;
    }
    out[at] = choice;
    return n;
}

static size_t drop(const rfi_trial *trials, const char *env, rfi_choice *out, size_t n)
{
    for (size_t at = 0; at < n; at++)
        if (!strcmp(trials[out[at].trial].env, env)) {
            memmove(out + at, out + at + 1, (n - at - 1) * sizeof *out);
            return n - 1;
        }
    return n;
}

size_t rfi_fold(const rfi_trial *trials, size_t n, const rfi_candidate *candidates, unsigned admits,
                rfi_choice *out)
{
    size_t total = 0, chosen = 0;
    for (size_t t = 0; t < n; t++)
        total += trials[t].count;
    const rfi_candidate **window = malloc((total + 1) * sizeof(*window));
    if (!window)
        return SIZE_MAX;

    const rfi_candidate *incumbent = NULL;
    for (size_t t = 0; t < n; t++) {
        if (!trials[t].swept || admits & ~trials[t].admits)
            continue;
        size_t count = gather(trials, t, candidates, admits, window);
        if (!count)
            continue; /* an empty sweep says nothing */
        rfi_choice choice = {.trial = t, .baseline = find_baseline(window, count)};
        incumbent = choice.best = judge(incumbent, window, count, &choice.runner_up);
        chosen = incumbent ? keep(trials, choice, out, chosen)
                           : drop(trials, trials[t].env, out, chosen);
    }
    free(window);
    return chosen;
}
