/* Creation: a transaction over all ranks. Each step is done by every rank or fails on every rank;
 * whatever a rank has built by then it takes down again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/codes.h"
#include "core/comm.h"
#include "core/env.h"
#include "core/hash.h"

/* ---- arguments: what has to be equal on all ranks ---- */

/* Order matters: the tuner walks variants in pack order. */
static uint64_t digest_packs(const rf_comm *comm)
{
    uint64_t digest = 0;
    for (size_t p = 0; p < comm->config.n_packs; p++)
        for (uint32_t s = 0; s < comm->config.packs[p]->n_shards; s++) {
            const rf_shard *shard = comm->config.packs[p]->shards[s];
            for (uint32_t v = 0; v < shard->n; v++) {
                unsigned char link[24];
                memcpy(link, &digest, 8);
                memcpy(link + 8, shard->variants[v].hash, 16);
                digest = rfi_hash64(link, sizeof link);
            }
        }
    return digest;
}

static rf_result compare_arguments(rf_comm *comm, rf_error *err)
{
    const rf_config *c = &comm->config;
    const char *tactic = rfi_env_get(RFI_RANKFOLD_TACTIC);
    const rfi_topology *topology = &comm->topology;
    const rfi_term terms[] = {
        {"config.backend", c->backend},
        {"config.capacity_bytes", c->capacity_bytes},
        {"config.channels", c->channels},
        {"deadline_ms (config or RANKFOLD_DEADLINE_MS)", c->deadline_ms},
        {"config.create_timeout_ms", c->create_timeout_ms},
        {"config.flags", c->flags},
        {"config.n_packs", c->n_packs},
        {"the digest of its packs", digest_packs(comm)},
        {"the digest of RANKFOLD_TACTIC", tactic ? rfi_hash64(tactic, strlen(tactic)) : 0},
        {"the digest of what RANKFOLD_TOPOLOGY says",
         topology->ranks ? rfi_hash64(topology, sizeof *topology) : 0},
    };
    return rfi_same(comm, "arguments", terms, sizeof terms / sizeof *terms, err);
}

/* ---- facts: what the group's hardware is ---- */

#define TEXT_MAX 65536

typedef struct card {
    char arch[24];
    uint32_t isa_mask, max_grid;
    unsigned char cpu_mask[RFI_CPU_MASK], uuid[16];
    char place[RFI_PLACE];
} card;

/* Lengths of a rank's two texts. */
typedef struct lengths {
    uint32_t hw, env;
} lengths;

static rf_result open_device(rf_comm *comm, rf_error *err)
{
    return comm->backend->open(&comm->config, &comm->device, err);
}

static uint32_t longest(const lengths *all, int world)
{
    uint32_t most = 0;
    for (int r = 0; r < world; r++) {
        uint32_t n = all[r].hw + all[r].env;
        most = n > most ? n : most;
    }
    return most;
}

/* Prefixes each line of rank r's text with "r<r>.". */
static void append_lines(FILE *f, int rank, const char *text, size_t bytes)
{
    while (bytes) {
        const char *end = memchr(text, '\n', bytes);
        size_t n = end ? (size_t)(end - text) : bytes;
        fprintf(f, "r%d.%.*s\n", rank, (int)n, text);
        bytes -= end ? n + 1 : n;
        text += end ? n + 1 : n;
    }
}

static char *join_texts(const rf_comm *comm, const lengths *all, const char *texts, size_t stride,
                        int env)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    if (!f)
        return NULL;
    for (int r = 0; r < comm->world; r++)
        append_lines(f, r, texts + (size_t)r * stride + (env ? all[r].hw : 0),
                     env ? all[r].env : all[r].hw);
    if (fclose(f)) {
        free(out);
        return NULL;
    }
    return out;
}

static char *join_toolchains(const rf_config *c)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    if (!f)
        return NULL;
    for (size_t p = 0; p < c->n_packs; p++)
        fprintf(f, "%s%s", p ? "; " : "", c->packs[p]->toolchain ? c->packs[p]->toolchain : "");
    if (fclose(f)) {
        free(out);
        return NULL;
    }
    return out;
}

static uint32_t count_cpus(const card *cards, int world)
{
    uint32_t n = 0;
    for (int i = 0; i < RFI_CPU_MASK; i++) {
        unsigned char any = 0;
        for (int r = 0; r < world; r++)
            any |= cards[r].cpu_mask[i];
        n += (uint32_t)__builtin_popcount(any);
    }
    return n;
}

static int on_same_device(const card *a, const card *b)
{
    static const unsigned char shareable[16];
    return memcmp(a->uuid, shareable, 16) && !memcmp(a->uuid, b->uuid, 16);
}

static rf_result check_uuids(const rf_comm *comm, const card *cards, rf_error *err)
{
    if (comm->config.flags & RF_SHARE_DEVICE)
        return RF_OK;
    for (int r = 1; r < comm->world; r++)
        for (int q = 0; q < r; q++)
            if (on_same_device(&cards[r], &cards[q]))
                return rfi_fail(err, RF_E_MISMATCH, r, "identity",
                                "ranks %d and %d are on the same device: RF_SHARE_DEVICE allows it",
                                q, r);
    return RF_OK;
}

/* A block that waits for a peer keeps its place. So all blocks that may wait at once have to fit:
 * those of every channel, of every rank on the device. */
static uint32_t grid_limit(const rf_comm *comm, const card *cards)
{
    uint32_t least = UINT32_MAX;
    for (int r = 0; r < comm->world; r++) {
        uint32_t sharers = 1;
        for (int q = 0; q < comm->world; q++)
            sharers += q != r && on_same_device(&cards[r], &cards[q]);
        uint32_t share = cards[r].max_grid / (comm->config.channels * sharers);
        if (cards[r].max_grid && share < least)
            least = share ? share : 1;
    }
    return least;
}

static rf_result join_group(rf_comm *comm, const card *cards, rf_error *err)
{
    rfi_group g = {.rank = comm->rank, .world = comm->world};
    g.cpus = count_cpus(cards, comm->world);
    for (int r = 0; r < RF_MAX_WORLD; r++)
        g.fd[r] = comm->control.link[r].fd;
    for (int r = 0; r < comm->world; r++)
        memcpy(g.place[r], cards[r].place, sizeof g.place[r]);
    /* The group can do what all its ranks can; that rank's name is the group's. */
    int least = 0;
    comm->isa_mask = UINT32_MAX;
    for (int r = 0; r < comm->world; r++) {
        comm->isa_mask &= cards[r].isa_mask;
        least = cards[r].isa_mask < cards[least].isa_mask ? r : least;
    }
    snprintf(comm->arch, sizeof comm->arch, "%.*s", (int)sizeof comm->arch - 1, cards[least].arch);
    return comm->backend->join(comm->device, &g, err);
}

static rf_result share_texts(rf_comm *comm, rf_error *err)
{
    uint32_t timeout = comm->config.create_timeout_ms;
    rfi_capabilities caps;
    comm->backend->capabilities(comm->device, &caps);
    lengths mine = {(uint32_t)strnlen(caps.hw_text, TEXT_MAX),
                    (uint32_t)strnlen(caps.env_text, TEXT_MAX)};
    lengths all[RF_MAX_WORLD];
    rf_result bad = rfi_allgather(comm, "identity", &mine, all, sizeof mine, timeout, err);
    if (bad)
        return bad;
    for (int r = 0; r < comm->world; r++)
        if (all[r].hw > TEXT_MAX || all[r].env > TEXT_MAX)
            return rfi_fail(err, RF_E_MISMATCH, r, "identity",
                            "rank %d describes its hardware in too many words", r);
    size_t stride = longest(all, comm->world);
    char *texts = calloc((size_t)comm->world + 1, stride);
    rf_error local = {0};
    bad = texts ? RF_OK : rfi_fail(&local, RF_E_MEMORY, comm->rank, "identity", "no memory");
    bad = rfi_agree(comm, "identity", bad, &local, timeout, err);
    if (!bad) {
        char *own = texts + (size_t)comm->world * stride;
        memcpy(own, caps.hw_text, mine.hw);
        memcpy(own + mine.hw, caps.env_text, mine.env);
        bad = rfi_allgather(comm, "identity", own, texts, stride, timeout, err);
    }
    if (!bad) {
        comm->hw_text = join_texts(comm, all, texts, stride, 0);
        comm->env_text = join_texts(comm, all, texts, stride, 1);
    }
    free(texts);
    return bad;
}

/* Which ranks are near each other: every rank knows how far the others are from it. */
static rf_result part_ranks(rf_comm *comm, rf_error *err)
{
    rfi_capabilities caps;
    uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD];
    comm->backend->capabilities(comm->device, &caps);
    rf_result bad = rfi_allgather(comm, "identity", caps.distance, distance, sizeof caps.distance,
                                  comm->config.create_timeout_ms, err);
    if (bad)
        return bad;
    rf_islands_info links;
    rfi_islands_from_links(distance, comm->world, &links);
    comm->islands = links;
    if (comm->topology.ranks)
        rfi_islands_from_file(&comm->topology, comm->world, &comm->islands);
    comm->regrouped = comm->islands.on != links.on ||
                      memcmp(comm->islands.order, links.order, sizeof links.order) != 0;
    return RF_OK;
}

static rf_result share_facts(rf_comm *comm, rf_error *err)
{
    uint32_t timeout = comm->config.create_timeout_ms;
    rfi_capabilities caps;
    comm->backend->capabilities(comm->device, &caps);
    card mine = {.isa_mask = caps.isa_mask, .max_grid = caps.max_grid}, all[RF_MAX_WORLD];
    memcpy(mine.arch, caps.arch, sizeof mine.arch);
    memcpy(mine.cpu_mask, caps.cpu_mask, sizeof mine.cpu_mask);
    memcpy(mine.uuid, caps.uuid, sizeof mine.uuid);
    memcpy(mine.place, caps.place, sizeof mine.place);
    rf_result bad = rfi_allgather(comm, "identity", &mine, all, sizeof mine, timeout, err);
    if (!bad)
        bad = check_uuids(comm, all, err);
    if (bad)
        return bad;
    comm->max_grid = grid_limit(comm, all);
    rf_error local = {0};
    bad = join_group(comm, all, &local);
    bad = rfi_agree(comm, "identity", bad, &local, timeout, err);
    if (!bad)
        bad = part_ranks(comm, err);
    return bad ? bad : share_texts(comm, err);
}

/* The transports that are on belong to the environment: what was measured over others says nothing
 * here. So does a grouping that a file makes - the links' own follows from what the hardware is -
 * where something may run that sums by it: ladder.c knows for what it counts. */
static char *with_settings(const rf_comm *comm)
{
    char *out = NULL, islands[RFI_ISLANDS_TEXT];
    size_t size;
    FILE *f = comm->env_text ? open_memstream(&out, &size) : NULL;
    if (!f)
        return NULL;
    fprintf(f, "%stransports=", comm->env_text);
    for (int i = 0, t; (t = rfi_transport_on(comm, i)) >= 0; i++)
        fprintf(f, "%s%s", i ? "," : "", rfi_transport_text((unsigned)t));
    fputc('\n', f);
    rfi_islands_text(&comm->islands, comm->world, islands);
    if (comm->regrouped && comm->admits & RF_VARIANT_REASSOC)
        fprintf(f, "islands=%s\n", islands);
    if (fclose(f)) {
        free(out);
        return NULL;
    }
    return out;
}

static rf_result fingerprint(rf_comm *comm, rf_error *err)
{
    rfi_variants_admit(comm);
    char *env_text = with_settings(comm);
    free(comm->env_text);
    comm->env_text = env_text;
    comm->toolchain = join_toolchains(&comm->config);
    if (!comm->hw_text || !comm->env_text || !comm->toolchain)
        return rfi_fail(err, RF_E_MEMORY, comm->rank, "identity", "no memory");
    comm->hw.text = comm->hw_text;
    comm->env.text = comm->env_text;
    rfi_hash128(comm->hw_text, strlen(comm->hw_text), comm->hw.hash);
    rfi_hash128(comm->env_text, strlen(comm->env_text), comm->env.hash);
    return RF_OK;
}

static rf_result start(rf_comm *comm, rf_error *err)
{
    comm->generation = 1;
    comm->n_channels = 1;
    snprintf(comm->channels[0].name, sizeof comm->channels[0].name, "default");
    rfi_channels_link(comm);
    rf_result bad = rfi_channels_clear(comm, err);
    if (bad)
        return bad;
    for (int d = 0; d < RFI_DTYPES; d++)
        comm->max_count[d] = comm->config.capacity_bytes / rf_dtype_size((rf_dtype)d);
    return rfi_class_plans(comm, err);
}

/* ---- the transaction ---- */

/* Either `local`, whose verdict is then agreed, or `together`, which is collective itself. */
static const struct step {
    const char *name;
    rf_result (*local)(rf_comm *comm, rf_error *err);
    rf_result (*together)(rf_comm *comm, rf_error *err);
} steps[] = {
    {"arguments", NULL, compare_arguments},
    {"open", open_device, NULL},
    {"identity", NULL, share_facts},
    {"packs", rfi_variants_open, NULL},
    {"transports", NULL, rfi_transports_open},
    {"identity", fingerprint, NULL},
    {"ready", start, NULL},
};
#define N_STEPS (sizeof steps / sizeof *steps)

static rf_result take(rf_comm *comm, const struct step *step, rf_error *err)
{
    if (step->together)
        return step->together(comm, err);
    rf_error mine = {0};
    rf_result bad = step->local(comm, &mine);
    return rfi_agree(comm, step->name, bad, &mine, comm->config.create_timeout_ms, err);
}

void rfi_comm_free(rf_comm *comm)
{
    rfi_control_close(&comm->control);
    if (comm->device)
        comm->backend->close(comm->device);
    for (int t = 0; t < RFI_N_TRANSPORTS; t++)
        if (comm->transport[t].own.fd >= 0)
            close(comm->transport[t].own.fd);
    for (uint32_t c = 0; comm->channels && c < comm->config.channels; c++)
        rfi_plan_free(&comm->channels[c].plans);
    rfi_variants_close(comm);
    free(comm->channels);
    free((void *)(uintptr_t)comm->config.packs);
    free(comm->hw_text);
    free(comm->env_text);
    free(comm->toolchain);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

static rf_comm *new_comm(const rfi_backend *backend, const rf_config *config, int rank, int world)
{
    rf_comm *comm = calloc(1, sizeof *comm);
    size_t bytes = config->channels * sizeof(rfi_channel);
    rfi_channel *channels = comm ? aligned_alloc(RF_LINE, bytes) : NULL;
    const rf_pack **packs = channels ? malloc(config->n_packs * sizeof *packs) : NULL;
    if (!packs) {
        free(channels);
        free(comm);
        return NULL;
    }
    memcpy(packs, config->packs, config->n_packs * sizeof *packs);
    memset(channels, 0, bytes);
    comm->rank = rank;
    comm->world = world;
    comm->config = *config;
    comm->config.packs = packs; /* the caller's array may go, the packs stay */
    comm->backend = backend;
    comm->channels = channels;
    for (int t = 0; t < RFI_N_TRANSPORTS; t++)
        comm->transport[t].own.fd = -1;
    for (int r = 0; r < RF_MAX_WORLD; r++) {
        for (int t = 0; t < RFI_N_TRANSPORTS; t++)
            comm->transport[t].import[r].fd = -1;
        comm->control.link[r].fd = -1;
    }
    pthread_mutex_init(&comm->lock, NULL);
    return comm;
}

static rf_result check_boot(const rf_bootstrap *boot, rf_comm *const *out, rf_error *err)
{
    if (!boot || !out)
        return rfi_fail(err, RF_E_ARG, -1, "arguments", "%s is NULL", boot ? "out" : "boot");
    if (boot->world < 1 || boot->world > RF_MAX_WORLD)
        return rfi_fail(err, RF_E_ARG, -1, "arguments", "boot.world is %d, expected 1 to %d",
                        boot->world, RF_MAX_WORLD);
    if (boot->rank < 0 || boot->rank >= boot->world)
        return rfi_fail(err, RF_E_ARG, -1, "arguments", "boot.rank is %d, expected 0 to %d",
                        boot->rank, boot->world - 1);
    if (boot->world > 1 && !boot->allgather)
        return rfi_fail(err, RF_E_ARG, boot->rank, "arguments", "boot.allgather is NULL");
    return RF_OK;
}

rf_result rfi_comm_create_on(const rfi_backend *backend, const rf_config *config,
                             const rf_bootstrap *boot, rf_comm **out, rf_error *err)
{
    rf_result bad = check_boot(boot, out, err);
    if (bad)
        return bad;
    /* Trouble of this rank's own is brought to the meeting, so that nobody waits for it. */
    rf_error mine = {0};
    rf_config c = RF_CONFIG_INIT;
    rfi_topology topology = {0};
    rf_comm *comm = NULL;
    bad = rfi_config_read(config, &c, &mine);
    uint32_t timeout = bad ? 60000 : c.create_timeout_ms;
    if (!bad)
        bad = rfi_config_environment(&c, &mine);
    if (!bad)
        bad = rfi_config_packs(&c, &mine);
    if (!bad)
        bad = rfi_topology_read(&topology, &mine);
    if (!bad && !(comm = new_comm(backend, &c, boot->rank, boot->world)))
        bad = rfi_fail(&mine, RF_E_MEMORY, boot->rank, "arguments", "no memory");
    rfi_control control;
    bad = rfi_control_open(&control, boot, bad, &mine, timeout, err);
    if (bad) {
        if (comm)
            rfi_comm_free(comm);
        return bad;
    }
    comm->control = control;
    comm->topology = topology;
    for (size_t i = 0; i < N_STEPS && !bad; i++)
        bad = take(comm, &steps[i], err);
    if (bad) {
        rfi_comm_free(comm);
        return bad;
    }
    *out = comm;
    return RF_OK;
}

rf_result rf_islands_query(const rf_comm *comm, rf_islands_info *out)
{
    if (!comm || !out)
        return RF_E_ARG;
    *out = comm->islands;
    return RF_OK;
}

rf_result rf_comm_create(const rf_config *config, const rf_bootstrap *boot, rf_comm **out,
                         rf_error *err)
{
    rf_config c;
    const rfi_backend *backend = NULL;
    if (!rfi_config_read(config, &c, NULL))
        backend = rfi_backend_of(c.backend);
    return rfi_comm_create_on(backend ? backend : &rfi_backend_cpu, config, boot, out, err);
}
