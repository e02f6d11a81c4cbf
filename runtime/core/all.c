/* All ranks from one thread: rank 0 runs on the caller's, the others on threads that live as long
 * as the call. Only rank 0 logs, so that log lines come from the caller's thread. */
#include <pthread.h>
#include <string.h>

#include "core/comm.h"

typedef struct crew crew;

typedef struct member {
    crew *crew;
    int rank;
    rf_result result;
    rf_error error;
} member;

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int go; /* 0 = wait, 1 = run, -1 = not all threads could be started: leave */
    rf_result (*work)(crew *crew, int rank, rf_error *err);
    member members[RF_MAX_WORLD];
    /* arguments */
    const rf_config *config;
    rf_bootstrap boot[RF_MAX_WORLD];
    rf_comm *comms[RF_MAX_WORLD];
    int channel;
    const rf_shape *shapes;
    size_t n;
};

static void *serve(void *arg)
{
    member *m = arg;
    pthread_mutex_lock(&m->crew->lock);
    while (!m->crew->go)
        pthread_cond_wait(&m->crew->changed, &m->crew->lock);
    int go = m->crew->go;
    pthread_mutex_unlock(&m->crew->lock);
    if (go > 0)
        m->result = m->crew->work(m->crew, m->rank, &m->error);
    return NULL;
}

/* Runs `work` for every rank; RF_OK, or the first rank's failure. */
static rf_result run(crew *c, int world, rf_error *err)
{
    pthread_t threads[RF_MAX_WORLD];
    int started = 1, why = 0;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    for (int r = 0; r < world; r++)
        c->members[r] = (member){.crew = c, .rank = r};
    for (; started < world && !why; started += !why)
        why = pthread_create(&threads[started], NULL, serve, &c->members[started]);
    pthread_mutex_lock(&c->lock);
    c->go = why ? -1 : 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    serve(&c->members[0]);
    for (int r = 1; r < started; r++)
        pthread_join(threads[r], NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    if (why)
        return rfi_fail(err, RF_E_SYSTEM, -1, "threads", "cannot start %d threads: %s", world - 1,
                        strerror(why));
    for (int r = 0; r < world; r++)
        if (c->members[r].result) {
            if (err)
                *err = c->members[r].error;
            return c->members[r].result;
        }
    return RF_OK;
}

static rf_result create_one(crew *c, int rank, rf_error *err)
{
    if (rank == 0)
        return rf_comm_create(c->config, &c->boot[rank], &c->comms[rank], err);
    rf_config silent = *c->config;
    silent.log = NULL;
    silent.store = NULL;
    return rf_comm_create(&silent, &c->boot[rank], &c->comms[rank], err);
}

rf_result rf_comm_create_all(const rf_config *config, int world, rf_comm **out, rf_error *err)
{
    rf_config checked;
    rf_result bad = rfi_config_read(config, &checked, err);
    if (bad)
        return bad;
    if (!out)
        return rfi_fail(err, RF_E_ARG, -1, "arguments", "out is NULL");
    crew c = {.work = create_one, .config = &checked};
    bad = rf_bootstrap_threads(world, c.boot, err);
    if (bad)
        return bad;
    bad = run(&c, world, err);
    for (int r = 0; r < world; r++) {
        rf_bootstrap_free(&c.boot[r]);
        if (bad)
            rf_comm_destroy(c.comms[r]);
    }
    if (!bad)
        memcpy(out, c.comms, (size_t)world * sizeof *out);
    return bad;
}

static rf_result prepare_one(crew *c, int rank, rf_error *err)
{
    return rf_prepare(c->comms[rank], c->channel, c->shapes, c->n, err);
}

rf_result rf_prepare_all(rf_comm *const *comms, int world, int channel, const rf_shape *shapes,
                         size_t n, rf_error *err)
{
    if (!comms || world < 1 || world > RF_MAX_WORLD)
        return rfi_fail(err, RF_E_ARG, -1, "arguments", "comms %p, world %d", (const void *)comms,
                        world);
    crew c = {.work = prepare_one, .channel = channel, .shapes = shapes, .n = n};
    for (int r = 0; r < world; r++) {
        if (!comms[r] || comms[r]->rank != r || comms[r]->world != world)
            return rfi_fail(err, RF_E_ARG, r, "arguments", "comms[%d] is not rank %d of world %d",
                            r, r, world);
        c.comms[r] = comms[r];
    }
    return run(&c, world, err);
}
