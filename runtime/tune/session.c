#define _GNU_SOURCE
#include <string.h>

#include "core/clock.h"
#include "tune/session.h"

typedef struct reply {
    rf_result code;
    int wrong;
    double ns;
    char text[RF_ERROR_TEXT];
} reply;

double rfi_seconds(void)
{
    return (double)rfi_now_ns() * 1e-9;
}

static void tell(const rfi_session *s, const rfi_order *o, const rf_variant *variant)
{
    static const char *const phase[] = {
        [RFI_ORDER_SHAPE] = "check",    [RFI_ORDER_CHECK] = "check",
        [RFI_ORDER_SETTLE] = "measure", [RFI_ORDER_MEASURE] = "measure",
        [RFI_ORDER_PREPARE] = "decide", [RFI_ORDER_SET] = "decide",
    };
    if (!s->options.progress || o->kind >= RFI_ORDER_END || !phase[o->kind])
        return;
    rf_tune_progress p = {
        .phase = phase[o->kind],
        .shape = s->shapes[o->shape],
        .shape_index = o->shape,
        .n_shapes = s->n,
        .variant = variant ? variant->name : NULL,
        .grid = o->grid,
        .done = o->done,
        .eta_seconds = o->eta_seconds,
    };
    s->options.progress(s->options.progress_ctx, &p);
}

static int is_baseline(const rfi_session *s, const rfi_order *o)
{
    return rfi_has_baseline(s->comm) && !memcmp(o->hash, rfi_baseline.hash, sizeof o->hash);
}

static rf_result obey(rfi_session *s, const rfi_order *o, reply *r, rf_error *err)
{
    rfi_worker *w = &s->worker;
    const rf_variant *variant = NULL;
    rf_result rc;
    if (o->kind == RFI_ORDER_CHECK || o->kind == RFI_ORDER_MEASURE || o->kind == RFI_ORDER_SET) {
        variant = is_baseline(s, o) ? &rfi_baseline : rfi_variant_by_hash(s->comm, o->hash);
        if (!variant)
            return rfi_fail(err, RF_E_VARIANT, rf_comm_rank(s->comm), "tune",
                            "rank 0 measures a variant that this rank does not hold");
    }
    tell(s, o, variant);
    switch (o->kind) {
    case RFI_ORDER_SHAPE:
        rc = rfi_worker_shape(w, &s->shapes[o->shape], err);
        if (rc == RF_OK)
            rfi_worker_hurry(w);
        return rc;
    case RFI_ORDER_CHECK:
        return rfi_worker_check(w, variant, o->grid, o->seed, &r->ns, &r->wrong, err);
    case RFI_ORDER_SETTLE:
        return rfi_worker_settle(w, o->seed, err);
    case RFI_ORDER_MEASURE:
        return rfi_worker_measure(w, variant, o->grid, o->calls, &r->ns, err);
    case RFI_ORDER_PREPARE:
        return rf_prepare(s->comm, s->channel, s->shapes, s->n, err);
    case RFI_ORDER_SET:
        return rfi_plan_set(s->comm, s->channel, &s->shapes[o->shape], variant, o->grid,
                            o->median_ns / 1000, o->baseline_ns / 1000, err);
    case RFI_ORDER_END:
        break;
    }
    return RF_OK;
}

/* A candidate may fail, and the session goes on; all other failures end it. */
static int survivable(rfi_order_kind kind, rf_result code)
{
    if (code == RF_OK)
        return 1;
    if (kind != RFI_ORDER_CHECK && kind != RFI_ORDER_MEASURE)
        return 0;
    return code != RF_E_PEER && code != RF_E_ABORTED && code != RF_E_CLOSED &&
           code != RF_E_MEMORY && code != RF_E_SYSTEM;
}

/* Of several failures the cause matters, not those who waited for it. */
static int is_waiting(rf_result code)
{
    return code == RF_E_TIMEOUT || code == RF_E_POISONED;
}

/* Carries out one order and folds the answers; the same result on every rank. */
static rf_result carry_out(rfi_session *s, const rfi_order *o, rfi_answer *out, rf_error *err)
{
    reply mine = {0}, all[RF_MAX_WORLD];
    rf_error why = {0};
    mine.code = obey(s, o, &mine, &why);
    memcpy(mine.text, why.text, sizeof mine.text);
    rf_result rc =
        rfi_allgather(s->comm, "tune", &mine, all, sizeof mine, rfi_timeout_ms(s->comm), err);
    if (rc != RF_OK)
        return rc;
    *out = (rfi_answer){0};
    int culprit = -1;
    for (int r = 0; r < rf_comm_world(s->comm); r++) {
        out->wrong |= all[r].wrong;
        out->ns = all[r].ns > out->ns ? all[r].ns : out->ns;
        if (!survivable(o->kind, all[r].code))
            return rfi_fail(err, all[r].code, r, "tune", "%s", all[r].text);
        if (all[r].code != RF_OK && (culprit < 0 || is_waiting(out->code)))
            culprit = r, out->code = all[r].code;
    }
    if (culprit < 0)
        return RF_OK;
    rfi_log(s->comm, 1, "tune: failed: rank %d: %s", culprit, all[culprit].text);
    s->summary.resets++;
    return rf_comm_reset(s->comm, rfi_timeout_ms(s->comm), err);
}

rf_result rfi_session_order(rfi_session *s, const rfi_order *order, rfi_answer *out, rf_error *err)
{
    rfi_order copy = *order;
    rf_result rc = rfi_broadcast(s->comm, "tune", &copy, sizeof copy, rfi_timeout_ms(s->comm), err);
    if (rc == RF_OK)
        rc = carry_out(s, &copy, out, err);
    s->over = rc != RF_OK;
    return rc;
}

rf_result rfi_session_follow(rfi_session *s, rf_error *err)
{
    for (;;) {
        rfi_order order;
        rfi_answer answer;
        rf_result rc =
            rfi_broadcast(s->comm, "tune", &order, sizeof order, rfi_timeout_ms(s->comm), err);
        if (rc == RF_OK && order.kind == RFI_ORDER_END) {
            s->summary = order.summary;
            return order.verdict == RF_OK
                       ? RF_OK
                       : rfi_fail(err, order.verdict, 0, "tune", "%s", order.text);
        }
        if (rc == RF_OK)
            rc = carry_out(s, &order, &answer, err);
        if (rc != RF_OK)
            return rc;
    }
}
