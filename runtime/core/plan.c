/* Prepare: rank 0 decides, every rank verifies, all commit or none. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/codes.h"
#include "core/comm.h"
#include "core/env.h"
#include "core/hash.h"

#define STEP "prepare"

/* ---- shapes ---- */

/* Elements of a shape; all that fit into 64 bits where there are more. */
static uint64_t elements(const rf_shape *s)
{
    uint64_t count;
    return __builtin_mul_overflow(s->rows, s->hidden, &count) ? UINT64_MAX : count;
}

static rf_result check_shape(const rf_comm *comm, const rf_shape *s, size_t i, rf_error *err)
{
    if (s->op != RF_ALL_REDUCE || (s->mode != RF_EAGER && s->mode != RF_GRAPH))
        return rfi_fail(err, RF_E_ARG, comm->rank, STEP, "shape %zu: op %d, mode %d: unknown", i,
                        (int)s->op, (int)s->mode);
    if (!rf_dtype_size(s->dtype))
        return rfi_fail(err, RF_E_DTYPE, comm->rank, STEP, "shape %zu: dtype %d: unknown", i,
                        (int)s->dtype);
    uint64_t count = elements(s);
    if (!count)
        return rfi_fail(err, RF_E_ARG, comm->rank, STEP,
                        "shape %zu: %llu rows of %llu, expected at least one of each", i,
                        (unsigned long long)s->rows, (unsigned long long)s->hidden);
    if (count > comm->max_count[s->dtype])
        return rfi_fail(err, RF_E_CAPACITY, comm->rank, STEP,
                        "shape %zu: %llu rows of %llu %s are more than the capacity of %llu bytes",
                        i, (unsigned long long)s->rows, (unsigned long long)s->hidden,
                        rf_dtype_name(s->dtype), (unsigned long long)comm->config.capacity_bytes);
    return RF_OK;
}

int rf_supports(const rf_comm *comm, const rf_shape *shape)
{
    rfi_class_choice choice;
    return comm && shape && !check_shape(comm, shape, 0, NULL) &&
           rfi_class_choose(comm, shape, &choice);
}

static rf_result check_arguments(const rf_comm *comm, int channel, const rf_shape *shapes, size_t n,
                                 rf_error *err)
{
    if (channel < 0 || (uint32_t)channel >= comm->n_channels)
        return rfi_fail(err, RF_E_CHANNEL, comm->rank, STEP,
                        "channel %d: expected 0 to %u, which are open", channel,
                        comm->n_channels - 1);
    if ((n && !shapes) || n > RFI_SHAPES_MAX)
        return rfi_fail(err, RF_E_ARG, comm->rank, STEP, "%zu shapes at %p: expected at most %d", n,
                        (const void *)shapes, RFI_SHAPES_MAX);
    for (size_t i = 0; i < n; i++) {
        rf_result bad = check_shape(comm, &shapes[i], i, err);
        if (bad)
            return bad;
    }
    return RF_OK;
}

/* Shapes as they travel: no padding. */
typedef struct wire_shape {
    uint32_t op, dtype, mode, unused;
    uint64_t rows, hidden;
} wire_shape;

static rf_result compare_shapes(rf_comm *comm, const wire_shape *mine, size_t n, rf_error *err)
{
    size_t bytes = n * sizeof *mine;
    wire_shape *all = malloc(bytes * (size_t)comm->world + 1);
    rf_error local = {0};
    rf_result bad = all ? RF_OK : rfi_fail(&local, RF_E_MEMORY, comm->rank, STEP, "no memory");
    uint32_t timeout = comm->config.create_timeout_ms;
    bad = rfi_agree(comm, STEP, bad, &local, timeout, err);
    if (!bad)
        bad = rfi_allgather(comm, STEP, mine, all, bytes, timeout, err);
    for (int r = 1; r < comm->world && !bad; r++)
        for (size_t i = 0; i < n && !bad; i++) {
            const wire_shape *a = &all[(size_t)r * n + i], *b = &all[i];
            if (memcmp(a, b, sizeof *a))
                bad = rfi_fail(err, RF_E_MISMATCH, r, STEP,
                               "shape %zu is %llu x %llu %s mode %u on rank %d, %llu x %llu %s "
                               "mode %u on rank 0",
                               i, (unsigned long long)a->rows, (unsigned long long)a->hidden,
                               rf_dtype_name((rf_dtype)a->dtype), a->mode, r,
                               (unsigned long long)b->rows, (unsigned long long)b->hidden,
                               rf_dtype_name((rf_dtype)b->dtype), b->mode);
        }
    free(all);
    return bad;
}

/* Same channel, same shapes? A digest first: shapes themselves travel only to name a difference. */
static rf_result compare(rf_comm *comm, int channel, const wire_shape *shapes, size_t n,
                         rf_error *err)
{
    uint64_t mine[3] = {(uint64_t)channel, n, rfi_hash64(shapes, n * sizeof *shapes)};
    uint64_t all[RF_MAX_WORLD][3];
    rf_result bad =
        rfi_allgather(comm, STEP, mine, all, sizeof mine, comm->config.create_timeout_ms, err);
    if (bad)
        return bad;
    int differ = 0;
    for (int r = 1; r < comm->world; r++) {
        if (all[r][0] != all[0][0] || all[r][1] != all[0][1])
            return rfi_fail(err, RF_E_MISMATCH, r, STEP,
                            "rank %d prepares %llu shapes on channel %llu, rank 0 %llu on channel "
                            "%llu",
                            r, (unsigned long long)all[r][1], (unsigned long long)all[r][0],
                            (unsigned long long)all[0][1], (unsigned long long)all[0][0]);
        differ |= all[r][2] != all[0][2];
    }
    return differ ? compare_shapes(comm, shapes, n, err) : RF_OK;
}

/* ---- rank 0 decides ---- */

typedef struct wire_plan {
    unsigned char hash[16];
    double median_us, baseline_us;
    uint64_t measured_rows, measured_hidden;
    uint32_t grid;
    uint8_t rung, fallback, unused[2];
    char reason[256];
} wire_plan;

typedef struct asking {
    const rf_comm *comm;
    const rf_shape *shape;
} asking;

static int have(void *ctx, const unsigned char hash[16], const char *name)
{
    const asking *a = ctx;
    const rf_variant *v = rfi_variant_by_hash(a->comm, hash);
    if (v && !rfi_refusal(a->comm, v, a->shape))
        return 2;
    v = rfi_variant_by_name(a->comm, name);
    return v && !rfi_refusal(a->comm, v, a->shape) ? 1 : 0;
}

static void settle(wire_plan *out, const rf_variant *v, uint32_t grid, rf_rung rung)
{
    memcpy(out->hash, v->hash, sizeof out->hash);
    out->grid = grid;
    out->rung = (uint8_t)rung;
}

static int forced(const rf_comm *comm, const rf_shape *shape, wire_plan *out)
{
    const char *glob = rfi_env_get(RFI_RANKFOLD_TACTIC);
    if (!glob)
        return 0;
    uint64_t bytes = rfi_shape_bytes(shape);
    for (size_t i = 0; i < comm->n_variants; i++) {
        const rf_variant *v = comm->variants[i];
        if (fnmatch(glob, v->name, 0) || rfi_refusal(comm, v, shape))
            continue;
        settle(out, v, rfi_usual_grid(comm, v, bytes), RF_RUNG_FORCED);
        snprintf(out->reason, sizeof out->reason, "RANKFOLD_TACTIC=%.100s", glob);
        return 1;
    }
    rfi_log(comm, 1, "RANKFOLD_TACTIC=%.100s names nothing that can run %llu x %llu %s", glob,
            (unsigned long long)shape->rows, (unsigned long long)shape->hidden,
            rf_dtype_name(shape->dtype));
    return 0;
}

/* The grid that was measured; at another size, as many blocks over the usual number as there. */
static uint32_t grid_of(const rf_comm *comm, const rfi_decision *d, const rf_variant *v,
                        uint64_t bytes)
{
    if (v->transport == RFI_TRANSPORT_CPU || (bytes <= d->bucket && d->bucket / 2 < bytes))
        return d->grid; /* KiB of payload per step; or measured in this very bucket */
    uint64_t here = rfi_usual_grid(comm, v, bytes), there = rfi_usual_grid(comm, v, d->bucket);
    return there ? (uint32_t)((d->grid * here + there - 1) / there) : d->grid;
}

/* 1 = answered. Also leaves in *out why not. */
static int stored(const rf_comm *comm, const rf_shape *shape, wire_plan *out)
{
    rf_store *s = rfi_store(comm);
    if (!s) {
        snprintf(out->reason, sizeof out->reason, "no tactic database");
        return 0;
    }
    rfi_key key = rfi_key_of(comm, shape);
    asking ask = {comm, shape};
    rfi_decision d;
    memset(&d, 0, sizeof d);
    int found = s->v->lookup(s, &key, have, &ask, &d);
    d.reason[sizeof d.reason - 1] = 0;
    d.variant[sizeof d.variant - 1] = 0;
    snprintf(out->reason, sizeof out->reason, "%s", d.reason);
    if (!found)
        return 0;
    out->rung = (uint8_t)d.rung;
    out->median_us = d.median_ns / 1000;
    out->baseline_us = d.baseline_ns / 1000;
    out->measured_rows = d.measured_rows;
    out->measured_hidden = d.measured_hidden;
    if (d.fallback) {
        out->fallback = 1;
        return 1;
    }
    const rf_variant *v = rfi_variant_by_hash(comm, d.hash);
    if (!v || rfi_refusal(comm, v, shape))
        v = rfi_variant_by_name(comm, d.variant);
    if (!v || rfi_refusal(comm, v, shape) || !d.grid)
        return 0;
    uint32_t grid = grid_of(comm, &d, v, key.bytes);
    settle(out, v, grid < comm->max_grid ? grid : comm->max_grid, d.rung);
    return 1;
}

static int decide(const rf_comm *comm, const rf_shape *shape, wire_plan *out)
{
    memset(out, 0, sizeof *out);
    if (forced(comm, shape, out) || stored(comm, shape, out))
        return 1;
    out->median_us = out->baseline_us = 0; /* of a decision that cannot be used */
    out->measured_rows = out->measured_hidden = 0;
    rfi_class_choice choice;
    if (!rfi_class_choose(comm, shape, &choice))
        return 0;
    settle(out, choice.variant, choice.grid, choice.rung);
    return 1;
}

static const char *store_warning(const rf_comm *comm)
{
    rf_store *s = rfi_store(comm);
    return s ? s->v->warning(s) : NULL;
}

static rf_result decide_all(const rf_comm *comm, const rf_shape *shapes, size_t n, wire_plan *out,
                            rf_error *err)
{
    size_t unmeasured = 0, partial = 0, stale = 0, left = 0;
    for (size_t i = 0; i < n; i++) {
        if (!decide(comm, &shapes[i], &out[i]))
            return rfi_fail(err, RF_E_VARIANT, 0, STEP,
                            "shape %zu: no variant for %llu x %llu %s, world %d runs here", i,
                            (unsigned long long)shapes[i].rows,
                            (unsigned long long)shapes[i].hidden, rf_dtype_name(shapes[i].dtype),
                            comm->world);
        int is_stale = out[i].rung == RF_RUNG_OTHER_ENV || out[i].rung == RF_RUNG_OTHER_HASH;
        if (is_stale && !stale++)
            rfi_log(comm, 1, "%s", out[i].reason);
        unmeasured += out[i].rung == RF_RUNG_CLASS || out[i].rung == RF_RUNG_GENERIC;
        left += out[i].fallback && !rfi_has_baseline(comm);
        if (out[i].rung == RF_RUNG_PARTIAL && !partial++)
            rfi_log(comm, 2, "%s", out[i].reason);
    }
    const char *warning = store_warning(comm);
    if (warning)
        rfi_log(comm, 1, "%s", warning);
    if (left)
        rfi_log(
            comm, 1,
            "shapes left to the caller's own collective, which was measured faster: %zu of %zu; "
            "this comm has none (rf_comm_baseline): RF_FALLBACK from a call means that nothing "
            "was summed",
            left, n);
    if (unmeasured && !comm->tuning)
        rfi_log(comm, 2, "shapes not measured here: %zu of %zu; rankfold tune measures them",
                unmeasured, n);
    return RF_OK;
}

/* ---- every rank verifies ---- */

static rf_result read_plan(const rf_comm *comm, const rf_shape *shape, wire_plan *wire,
                           rfi_plan *out, rf_error *err)
{
    wire->reason[sizeof wire->reason - 1] = 0;
    *out = (rfi_plan){.count = elements(shape),
                      .grid = wire->grid,
                      .fallback = wire->fallback,
                      .shape = *shape,
                      .rung = (rf_rung)wire->rung,
                      .median_us = wire->median_us,
                      .baseline_us = wire->baseline_us,
                      .measured_rows = wire->measured_rows,
                      .measured_hidden = wire->measured_hidden};
    memcpy(out->reason, wire->reason, sizeof out->reason);
    if (out->fallback)
        return RF_OK;
    out->variant = rfi_variant_by_hash(comm, wire->hash);
    char hex[RFI_HEX];
    rfi_hex(wire->hash, hex);
    if (!out->variant)
        return rfi_fail(err, RF_E_VARIANT, comm->rank, STEP,
                        "rank %d does not hold the variant %s that rank 0 chose", comm->rank, hex);
    const char *refusal = rfi_refusal(comm, out->variant, shape);
    if (refusal)
        return rfi_fail(err, RF_E_VARIANT, comm->rank, STEP, "%s: %s", out->variant->name, refusal);
    out->tag = rfi_plan_tag(out->variant, out->grid);
    return rfi_variant_ready(comm, out->variant, err);
}

/* Buffers of one prepare. */
typedef struct draft {
    wire_shape *shapes;
    wire_plan *wires; /* rank 0's decisions; the last one carries the store's generation */
    rfi_plan *plans;
} draft;

static void drop(draft *d)
{
    free(d->shapes);
    free(d->wires);
    free(d->plans);
}

static rf_result draw_up(const rf_comm *comm, int channel, const rf_shape *shapes, size_t n,
                         draft *d, rf_error *err)
{
    rf_result bad = check_arguments(comm, channel, shapes, n, err);
    if (bad)
        return bad;
    d->shapes = calloc(n + 1, sizeof *d->shapes);
    d->wires = calloc(n + 1, sizeof *d->wires);
    d->plans = calloc(n + 1, sizeof *d->plans);
    if (!d->shapes || !d->wires || !d->plans)
        return rfi_fail(err, RF_E_MEMORY, comm->rank, STEP, "no memory for %zu shapes", n);
    for (size_t i = 0; i < n; i++)
        d->shapes[i] = (wire_shape){.op = shapes[i].op,
                                    .dtype = shapes[i].dtype,
                                    .mode = shapes[i].mode,
                                    .rows = shapes[i].rows,
                                    .hidden = shapes[i].hidden};
    return RF_OK;
}

static rf_result reserve(rf_comm *comm, int channel, size_t n, rf_error *err)
{
    pthread_mutex_lock(&comm->lock);
    int fits = rfi_plan_reserve(&comm->channels[channel].plans, (uint32_t)n);
    pthread_mutex_unlock(&comm->lock);
    return fits ? RF_OK
                : rfi_fail(err, RF_E_MEMORY, comm->rank, STEP, "no memory for %zu plans", n);
}

static void commit(rf_comm *comm, int channel, const rfi_plan *plans, size_t n,
                   uint64_t store_generation)
{
    const char *warning = store_warning(comm);
    pthread_mutex_lock(&comm->lock);
    comm->store_generation = store_generation;
    snprintf(comm->store_warning, sizeof comm->store_warning, "%s", warning ? warning : "");
    for (size_t i = 0; i < n; i++)
        rfi_plan_put(&comm->channels[channel].plans, &plans[i]);
    pthread_mutex_unlock(&comm->lock);
}

static rf_result prepare(rf_comm *comm, int channel, const rf_shape *shapes, size_t n, draft *d,
                         rf_error *err)
{
    uint32_t timeout = comm->config.create_timeout_ms;
    rf_error mine = {0};
    rf_result bad = draw_up(comm, channel, shapes, n, d, &mine);
    bad = rfi_agree(comm, STEP, bad, &mine, timeout, err);
    if (!bad)
        bad = compare(comm, channel, d->shapes, n, err);
    if (bad)
        return bad;

    rf_result decided = RF_OK;
    rf_store *store = rfi_store(comm);
    if (comm->rank == 0)
        decided = decide_all(comm, shapes, n, d->wires, &mine);
    uint64_t generation = store ? store->v->generation(store) : 0;
    memcpy(d->wires[n].hash, &generation, sizeof generation);
    bad = rfi_broadcast(comm, STEP, d->wires, (n + 1) * sizeof *d->wires, timeout, err);
    if (bad)
        return bad;
    memcpy(&generation, d->wires[n].hash, sizeof generation);
    for (size_t i = 0; i < n && !decided; i++)
        decided = read_plan(comm, &shapes[i], &d->wires[i], &d->plans[i], &mine);
    if (!decided)
        decided = reserve(comm, channel, n, &mine);
    bad = rfi_agree(comm, STEP, decided, &mine, timeout, err);
    if (bad)
        return bad;
    commit(comm, channel, d->plans, n, generation);
    return RF_OK;
}

rf_result rf_prepare(rf_comm *comm, int channel, const rf_shape *shapes, size_t n, rf_error *err)
{
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "comm is NULL");
    draft d = {0};
    rf_result result = prepare(comm, channel, shapes, n, &d, err);
    drop(&d);
    return result;
}

rf_result rfi_plan_set(rf_comm *comm, int channel, const rf_shape *shape, const rf_variant *variant,
                       uint32_t grid, double median_us, double baseline_us, rf_error *err)
{
    rf_result bad = check_arguments(comm, channel, shape, 1, err);
    if (bad)
        return bad;
    rfi_plan plan = {.count = elements(shape),
                     .fallback = variant == &rfi_baseline,
                     .shape = *shape,
                     .rung = RF_RUNG_SESSION,
                     .median_us = median_us,
                     .baseline_us = baseline_us,
                     .measured_rows = shape->rows,
                     .measured_hidden = shape->hidden};
    if (!plan.fallback) {
        const char *refusal = rfi_refusal(comm, variant, shape);
        if (refusal || !grid)
            return rfi_fail(err, RF_E_VARIANT, comm->rank, STEP, "%s: %s", variant->name,
                            refusal ? refusal : "grid is 0");
        plan.variant = variant;
        plan.grid = grid < comm->max_grid ? grid : comm->max_grid;
        plan.tag = rfi_plan_tag(variant, plan.grid);
        bad = rfi_variant_ready(comm, variant, err);
        if (bad)
            return bad;
    }
    snprintf(plan.reason, sizeof plan.reason, "%s", rf_rung_text(RF_RUNG_SESSION));
    bad = reserve(comm, channel, 1, err);
    if (!bad)
        commit(comm, channel, &plan, 1, comm->store_generation);
    return bad;
}

rf_result rfi_class_plans(rf_comm *comm, rf_error *err)
{
    for (int d = 0; d < RFI_DTYPES; d++)
        for (int c = 0; c < rfi_class_count(); c++) {
            rf_shape shape = {.dtype = (rf_dtype)d, .rows = 1};
            uint64_t most = comm->max_count[d], last = c == rfi_class_count() - 1;
            shape.hidden = rfi_class_bytes(c) / rf_dtype_size(shape.dtype);
            if (last || shape.hidden > most) /* good for every size of the class */
                shape.hidden = most;
            rfi_class_choice choice;
            rfi_plan *plan = &comm->class_plan[d][c];
            if (!rfi_class_choose(comm, &shape, &choice))
                continue;
            *plan = (rfi_plan){.count = shape.hidden,
                               .tag = rfi_plan_tag(choice.variant, choice.grid),
                               .variant = choice.variant,
                               .grid = choice.grid,
                               .shape = shape,
                               .rung = choice.rung};
            rf_result bad = rfi_variant_ready(comm, choice.variant, err);
            if (bad)
                return bad;
        }
    return RF_OK;
}

/* A better transport may have been tried in vain. */
static void add_off(const rf_comm *comm, rf_plan_info *out)
{
    char off[RF_ERROR_TEXT];
    size_t used = strlen(out->reason);
    rfi_transports_off(comm, off, sizeof off);
    if (off[0])
        snprintf(out->reason + used, sizeof out->reason - used, "%s%s", used ? "; " : "", off);
}

rf_result rf_plan_query(const rf_comm *comm, int channel, uint64_t count, rf_dtype dtype,
                        rf_mode mode, rf_plan_info *out)
{
    if (!comm || !out || !count || (mode != RF_EAGER && mode != RF_GRAPH))
        return RF_E_ARG;
    if (channel < 0 || (uint32_t)channel >= comm->n_channels)
        return RF_E_CHANNEL;
    if (!rf_dtype_size(dtype))
        return RF_E_DTYPE;
    if (count > comm->max_count[dtype])
        return RF_E_CAPACITY;
    rfi_path path;
    const rfi_plan *plan =
        rfi_plan_resolve(comm, &comm->channels[channel], dtype, mode, count, &path);
    if (!plan)
        return RF_E_VARIANT;
    memset(out, 0, sizeof *out);
    snprintf(out->variant, sizeof out->variant, "%s", plan->variant ? plan->variant->name : "");
    out->grid = plan->grid;
    out->rung = plan->rung;
    out->fallback = plan->fallback;
    out->median_us = plan->median_us;
    out->baseline_us = plan->baseline_us;
    out->measured_rows = plan->measured_rows;
    out->measured_hidden = plan->measured_hidden;
    if (path == RFI_PATH_PREPARED) {
        snprintf(out->reason, sizeof out->reason, "%s", plan->reason);
        add_off(comm, out);
        return RF_OK;
    }
    int measured = plan->rung >= RF_RUNG_EXACT && plan->rung < RF_RUNG_NEAREST;
    out->rung = measured ? RF_RUNG_NEAREST : plan->rung;
    out->median_us = out->baseline_us = 0; /* was measured at another size */
    out->measured_rows = out->measured_hidden = 0;
    if (path == RFI_PATH_NEAREST)
        snprintf(out->reason, sizeof out->reason,
                 "not prepared; nearest prepared shape: %llu x %llu %s",
                 (unsigned long long)plan->shape.rows, (unsigned long long)plan->shape.hidden,
                 rf_dtype_name(dtype));
    else
        snprintf(out->reason, sizeof out->reason, "nothing of this dtype is prepared");
    add_off(comm, out);
    return RF_OK;
}
