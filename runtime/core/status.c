/* One line of JSON: what this comm is, what it uses, and why not the rest. */
#include <stdio.h>
#include <string.h>

#include "core/codes.h"
#include "core/comm.h"
#include "core/hash.h"
#include "core/json.h"

static void put_hash(rfi_json *j, const char *key, const unsigned char hash[16])
{
    char hex[RFI_HEX];
    rfi_hex(hash, hex);
    rfi_json_text(j, key, hex);
}

static void put_health(rfi_json *j, const rf_health *h)
{
    rfi_json_open(j, "health", '{');
    rfi_json_integer(j, "code", h->code);
    rfi_json_text(j, "text", rf_strerror(h->code));
    rfi_json_integer(j, "channel", h->channel);
    rfi_json_integer(j, "culprit", h->culprit);
    rfi_json_integer(j, "sequence", (long long)h->sequence);
    rfi_json_integer(j, "calls", (long long)h->calls);
    rfi_json_close(j, '}');
}

static void put_transports(rfi_json *j, const rf_comm *comm)
{
    rfi_json_open(j, "transports", '[');
    for (int i = 0; i < comm->backend->n_transports; i++) {
        uint8_t code = comm->backend->transports[i];
        const rfi_transport *t = &comm->transport[code];
        rfi_json_open(j, NULL, '{');
        rfi_json_text(j, "name", rfi_transport_text(code));
        rfi_json_bool(j, "on", t->on);
        if (!t->on) {
            rfi_json_integer(j, "rank", t->why.rank);
            rfi_json_text(j, "step", t->why.step);
            rfi_json_text(j, "reason", t->why.text);
        }
        rfi_json_close(j, '}');
    }
    rfi_json_close(j, ']');
}

static void put_islands(rfi_json *j, const rf_comm *comm)
{
    char text[RFI_ISLANDS_TEXT];
    rfi_islands_text(&comm->islands, comm->world, text);
    rfi_json_open(j, "islands", '{');
    rfi_json_text(j, "ranks", comm->islands.on ? text : NULL);
    rfi_json_text(j, "reason", comm->islands.reason);
    rfi_json_close(j, '}');
}

static void put_store(rfi_json *j, const rf_comm *comm)
{
    rfi_json_open(j, "store", '{');
    rfi_json_bool(j, "here", rfi_store(comm) != NULL);
    rfi_json_integer(j, "generation", (long long)comm->store_generation);
    rfi_json_text(j, "warning", comm->store_warning[0] ? comm->store_warning : NULL);
    rfi_json_close(j, '}');
}

static void put_baseline(rfi_json *j, const rf_baseline *b)
{
    const char *why = b->name[0] ? b->name : "none was given (rf_comm_baseline)";
    rfi_json_open(j, "baseline", '{');
    rfi_json_text(j, "name", b->all_reduce ? b->name : NULL);
    rfi_json_text(j, "reason", b->all_reduce ? NULL : why);
    rfi_json_close(j, '}');
}

static void put_plan(rfi_json *j, const rfi_plan *p)
{
    rfi_json_open(j, NULL, '{');
    rfi_json_integer(j, "rows", (long long)p->shape.rows);
    rfi_json_integer(j, "hidden", (long long)p->shape.hidden);
    rfi_json_text(j, "dtype", rf_dtype_name(p->shape.dtype));
    rfi_json_text(j, "mode", p->shape.mode == RF_GRAPH ? "graph" : "eager");
    rfi_json_text(j, "variant", p->variant ? p->variant->name : NULL);
    rfi_json_integer(j, "grid", p->grid);
    rfi_json_bool(j, "fallback", p->fallback);
    rfi_json_text(j, "rung", rf_rung_text(p->rung));
    rfi_json_number(j, "median_us", p->median_us);
    rfi_json_number(j, "baseline_us", p->baseline_us);
    rfi_json_text(j, "reason", p->reason);
    rfi_json_close(j, '}');
}

static void put_calls(rfi_json *j, const rfi_channel *channel)
{
    static const char *const paths[] = {
#define RF_X(name, text, ours) text,
        RFI_PATH_LIST(RF_X)
#undef RF_X
    };
    rfi_json_open(j, "calls", '{');
    for (int p = 0; p < RFI_N_PATHS; p++)
        rfi_json_integer(j, paths[p],
                         (long long)__atomic_load_n(&channel->calls[p], __ATOMIC_RELAXED));
    rfi_json_close(j, '}');
}

static void put_channels(rfi_json *j, const rf_comm *comm)
{
    rfi_json_open(j, "channels", '[');
    for (uint32_t c = 0; c < comm->n_channels; c++) {
        const rfi_channel *channel = &comm->channels[c];
        rfi_json_open(j, NULL, '{');
        rfi_json_text(j, "name", channel->name);
        put_calls(j, channel);
        rfi_json_open(j, "plans", '[');
        for (uint32_t i = 0; i < channel->plans.n; i++)
            put_plan(j, &channel->plans.plans[i]);
        rfi_json_close(j, ']');
        rfi_json_close(j, '}');
    }
    rfi_json_close(j, ']');
}

/* ---- tactics: what variants have in common beyond dtype and hidden size ---- */

static int same_tactic(const rf_variant *a, const rf_variant *b)
{
    return a->algo == b->algo && a->transport == b->transport && a->wire == b->wire &&
           a->isa == b->isa && a->copy == b->copy && a->threads == b->threads &&
           a->unroll == b->unroll && a->by_rank == b->by_rank && a->flags == b->flags;
}

/* A variant's name without what it is for: operation, world, dtype, hidden size. */
static const char *tactic_of(const rf_variant *v)
{
    const char *name = v->name;
    for (int i = 0; i < 4 && strchr(name, '_'); i++)
        name = strchr(name, '_') + 1;
    return name;
}

static int seen_before(const rf_comm *comm, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (same_tactic(comm->variants[k], comm->variants[i]))
            return 1;
    return 0;
}

static const char *why_not(const rf_comm *comm, const rf_variant *v)
{
    const char *refusal = rfi_refusal_here(comm, v);
    uint32_t plans = 0;
    if (refusal)
        return refusal;
    for (uint32_t c = 0; c < comm->n_channels; c++) {
        const rfi_plan_table *t = &comm->channels[c].plans;
        plans += t->n;
        for (uint32_t i = 0; i < t->n; i++)
            if (t->plans[i].variant && same_tactic(t->plans[i].variant, v))
                return NULL;
    }
    return plans ? "another is faster, or stands in until measured, for every prepared shape"
                 : "no shape is prepared";
}

static void put_unused(rfi_json *j, const rf_comm *comm)
{
    rfi_json_open(j, "not_in_use", '[');
    for (size_t i = 0; i < comm->n_variants; i++) {
        const rf_variant *v = comm->variants[i];
        const char *reason = seen_before(comm, i) ? NULL : why_not(comm, v);
        if (!reason)
            continue;
        rfi_json_open(j, NULL, '{');
        rfi_json_text(j, "tactic", tactic_of(v));
        rfi_json_text(j, "reason", reason);
        rfi_json_close(j, '}');
    }
    rfi_json_close(j, ']');
}

size_t rf_status_json(const rf_comm *comm, char *buf, size_t size)
{
    rfi_json j;
    rfi_json_start(&j, buf, size);
    if (!comm) {
        rfi_json_text(&j, NULL, NULL);
        return rfi_json_end(&j);
    }
    rf_health health;
    rf_comm_check(comm, &health);
    pthread_mutex_t *lock = (pthread_mutex_t *)&comm->lock;
    pthread_mutex_lock(lock);
    rfi_json_open(&j, NULL, '{');
    rfi_json_text(&j, "version", rf_version_string());
    rfi_json_integer(&j, "rank", comm->rank);
    rfi_json_integer(&j, "world", comm->world);
    rfi_json_text(&j, "backend", comm->backend->name);
    rfi_json_text(&j, "arch", comm->arch);
    put_hash(&j, "hw", comm->hw.hash);
    put_hash(&j, "env", comm->env.hash);
    rfi_json_integer(&j, "capacity_bytes", (long long)comm->config.capacity_bytes);
    rfi_json_integer(&j, "deadline_ms", comm->config.deadline_ms);
    rfi_json_integer(&j, "generation", comm->generation);
    put_transports(&j, comm);
    put_islands(&j, comm);
    put_health(&j, &health);
    put_store(&j, comm);
    put_baseline(&j, &comm->baseline);
    put_channels(&j, comm);
    put_unused(&j, comm);
    rfi_json_close(&j, '}');
    pthread_mutex_unlock(lock);
    return rfi_json_end(&j);
}
