#include <stdlib.h>
#include <string.h>

#include "core/plan_table.h"

uint64_t rfi_plan_tag(const rf_variant *variant, uint32_t grid)
{
    uint64_t head;
    memcpy(&head, variant->hash, sizeof head);
    return head ^ grid;
}

static uint32_t place(const rfi_plan_table *t, rf_dtype dtype, rf_mode mode, uint64_t count)
{
    uint64_t key = (count << 3 | (uint64_t)mode << 2 | (uint64_t)dtype) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32) & t->mask;
}

static int is(const rfi_plan *p, rf_dtype dtype, rf_mode mode, uint64_t count)
{
    return p->count == count && p->shape.dtype == dtype && p->shape.mode == mode;
}

static const rfi_plan *find(const rfi_plan_table *t, rf_dtype dtype, rf_mode mode, uint64_t count)
{
    if (!t->slots)
        return NULL;
    for (uint32_t i = place(t, dtype, mode, count); t->slots[i]; i = (i + 1) & t->mask)
        if (is(&t->plans[t->slots[i] - 1], dtype, mode, count))
            return &t->plans[t->slots[i] - 1];
    return NULL;
}

const rfi_plan *rfi_plan_find(const rfi_plan_table *t, rf_dtype dtype, rf_mode mode, uint64_t count)
{
    const rfi_plan *plan = find(t, dtype, mode, count);
    return plan ? plan : find(t, dtype, mode == RF_EAGER ? RF_GRAPH : RF_EAGER, count);
}

static void index_plan(rfi_plan_table *t, uint32_t plan)
{
    const rfi_plan *p = &t->plans[plan];
    uint32_t i = place(t, p->shape.dtype, p->shape.mode, p->count);
    while (t->slots[i])
        i = (i + 1) & t->mask;
    t->slots[i] = plan + 1;
}

int rfi_plan_reserve(rfi_plan_table *t, uint32_t n)
{
    if (t->n + n <= t->room)
        return 1;
    uint32_t room = 16;
    while (room < t->n + n)
        room *= 2;
    rfi_plan *plans = malloc(room * sizeof *plans);
    uint32_t *slots = calloc(2 * (size_t)room, sizeof *slots);
    if (!plans || !slots) {
        free(plans);
        free(slots);
        return 0;
    }
    if (t->n)
        memcpy(plans, t->plans, t->n * sizeof *plans);
    free(t->plans);
    free(t->slots);
    *t = (rfi_plan_table){
        .plans = plans, .slots = slots, .n = t->n, .room = room, .mask = 2 * room - 1};
    for (uint32_t i = 0; i < t->n; i++)
        index_plan(t, i);
    return 1;
}

int rfi_plan_put(rfi_plan_table *t, const rfi_plan *plan)
{
    const rfi_plan *old = find(t, plan->shape.dtype, plan->shape.mode, plan->count);
    if (old) {
        t->plans[old - t->plans] = *plan;
        return 1;
    }
    if (!rfi_plan_reserve(t, 1))
        return 0;
    t->plans[t->n] = *plan;
    index_plan(t, t->n++);
    return 1;
}

void rfi_plan_free(rfi_plan_table *t)
{
    free(t->plans);
    free(t->slots);
    *t = (rfi_plan_table){0};
}

/* Is a/b nearer to 1 than c/d, both >= 1? By cross multiplication: exact and the same everywhere.
 */
static int nearer(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return (unsigned __int128)a * d < (unsigned __int128)c * b;
}

const rfi_plan *rfi_plan_nearest(const rfi_plan_table *t, rf_dtype dtype, rf_mode mode,
                                 uint64_t count)
{
    const rfi_plan *best = NULL;
    uint64_t best_up = 0, best_down = 1;
    for (uint32_t i = 0; i < t->n; i++) {
        const rfi_plan *p = &t->plans[i];
        if (p->shape.dtype != dtype)
            continue;
        if (p->variant && p->variant->hidden && count % p->variant->hidden)
            continue;
        uint64_t up = p->count > count ? p->count : count;
        uint64_t down = p->count > count ? count : p->count;
        int closer = !best || nearer(up, down, best_up, best_down);
        int level = best && !closer && !nearer(best_up, best_down, up, down);
        if (level) /* asked-for mode first, then the smaller one */
            closer =
                p->shape.mode != best->shape.mode ? p->shape.mode == mode : p->count < best->count;
        if (closer) {
            best = p;
            best_up = up;
            best_down = down;
        }
    }
    return best;
}
