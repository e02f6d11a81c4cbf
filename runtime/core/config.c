#include <stddef.h>
#include <string.h>

#include "core/codes.h"
#include "core/config.h"
#include "core/env.h"
#include "core/group.h"

extern const int rfi_abi_4;

#define STEP         "arguments"
#define OLDEST_SIZE  (offsetof(rf_config, log_ctx) + sizeof(void *)) /* of version 0.1 */
#define CAPACITY_MAX (1ull << 40)
#define TIMEOUT_MAX  86400000u
#define KNOWN_FLAGS                                                                                \
    (RF_REASSOC | RF_LOSSY | RF_DEPENDENT | RF_SHARE_DEVICE | RF_OPT_IN | RF_NO_PEER)

const rfi_backend *rfi_backend_of(rf_backend_kind kind)
{
    static const rfi_backend *const backends[] = {
        [RF_BACKEND_CPU] = &rfi_backend_cpu,
        [RF_BACKEND_CUDA] = &rfi_backend_cuda,
    };
    return (unsigned)kind < sizeof backends / sizeof *backends ? backends[kind] : NULL;
}

rf_result rfi_config_read(const rf_config *in, rf_config *out, rf_error *err)
{
    if (!in)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config is NULL");
    if (in->struct_size < OLDEST_SIZE || in->struct_size > 65536)
        return rfi_fail(err, RF_E_ARG, -1, STEP,
                        "config.struct_size is %zu, expected %zu: start from RF_CONFIG_INIT",
                        in->struct_size, sizeof *in);
    for (size_t i = sizeof *in; i < in->struct_size; i++)
        if (((const unsigned char *)in)[i])
            return rfi_fail(err, RF_E_ARG, -1, STEP,
                            "config has fields that this version (%s) does not know",
                            rf_version_string());
    memset(out, 0, sizeof *out);
    memcpy(out, in, in->struct_size < sizeof *out ? in->struct_size : sizeof *out);
    out->struct_size = sizeof *out;
    out->capacity_bytes = out->capacity_bytes ? out->capacity_bytes : 64u << 20;
    out->channels = out->channels ? out->channels : 1;
    out->deadline_ms = out->deadline_ms ? out->deadline_ms : 30000;
    out->create_timeout_ms = out->create_timeout_ms ? out->create_timeout_ms : 60000;

    if (!rfi_backend_of(out->backend))
        return rfi_fail(err, RF_E_ARG, -1, STEP,
                        "config.backend is %d, expected %d (cpu) or %d (cuda)", (int)out->backend,
                        (int)RF_BACKEND_CPU, (int)RF_BACKEND_CUDA);
    if (out->capacity_bytes > CAPACITY_MAX)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config.capacity_bytes is %llu, at most %llu",
                        (unsigned long long)out->capacity_bytes, CAPACITY_MAX);
    if (out->channels > RFI_CHANNELS)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config.channels is %u, expected 1 to %d",
                        out->channels, RFI_CHANNELS);
    if (out->deadline_ms > TIMEOUT_MAX || out->create_timeout_ms > TIMEOUT_MAX)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config: a time-out is more than a day");
    if (out->flags & ~KNOWN_FLAGS)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config.flags is 0x%x, known are 0x%x", out->flags,
                        KNOWN_FLAGS);
    if (out->n_packs && !out->packs)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config.packs is NULL, n_packs %zu", out->n_packs);
    return RF_OK;
}

rf_result rfi_config_environment(rf_config *config, rf_error *err)
{
    const char *disable = rfi_env_get(RFI_RANKFOLD_DISABLE);
    if (disable && !strcmp(disable, "1"))
        return rfi_fail(err, RF_E_BACKEND, -1, STEP, "disabled by RANKFOLD_DISABLE=1");
    if (disable && strcmp(disable, "0"))
        return rfi_fail(err, RF_E_ARG, -1, STEP, "RANKFOLD_DISABLE=%.32s: expected 0 or 1",
                        disable);
    if (!disable && config->flags & RF_OPT_IN)
        return rfi_fail(err, RF_E_BACKEND, -1, STEP,
                        "not asked for: RANKFOLD_DISABLE=0 on every rank opts in");
    const char *deadline = rfi_env_get(RFI_RANKFOLD_DEADLINE_MS);
    if (deadline && !rfi_parse_u32(deadline, 1, TIMEOUT_MAX, &config->deadline_ms))
        return rfi_fail(err, RF_E_ARG, -1, STEP,
                        "RANKFOLD_DEADLINE_MS=%.32s: expected 1 to %u milliseconds", deadline,
                        TIMEOUT_MAX);
    return RF_OK;
}

static rf_result check_pack(const rf_pack *pack, size_t i, rf_error *err)
{
    if (!pack)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "config.packs[%zu] is NULL", i);
    if (pack->abi != RF_ABI)
        return rfi_fail(err, RF_E_PACK, -1, STEP, "pack %zu was built for abi %u, this is abi %d",
                        i, pack->abi, RF_ABI);
    if (pack->size != sizeof *pack || pack->abi_witness != &rfi_abi_4)
        return rfi_fail(err, RF_E_PACK, -1, STEP,
                        "pack %zu was built with other structs (size %u, expected %zu)", i,
                        pack->size, sizeof *pack);
    for (uint32_t s = 0; s < pack->n_shards; s++)
        for (uint32_t v = 0; v < pack->shards[s]->n; v++) {
            const rf_variant *variant = &pack->shards[s]->variants[v];
            if (!variant->name || variant->world != pack->shards[s]->world)
                return rfi_fail(err, RF_E_PACK, -1, STEP, "pack %s: shard %s is damaged", pack->sku,
                                pack->shards[s]->name);
        }
    return RF_OK;
}

rf_result rfi_config_packs(const rf_config *config, rf_error *err)
{
    if (!config->n_packs)
        return rfi_fail(
            err, RF_E_PACK, -1, STEP,
            "config.packs is empty: link a librankfold_<sku>.a and pass &rf_pack_<sku>");
    for (size_t i = 0; i < config->n_packs; i++) {
        rf_result bad = check_pack(config->packs[i], i, err);
        if (bad)
            return bad;
    }
    return RF_OK;
}

/* A rank alone has no peer to keep away from. */
const char *rfi_config_forbids(const rf_config *config, int world, uint8_t transport)
{
    int no_peer = transport == RFI_TRANSPORT_PEER && config->flags & RF_NO_PEER && world > 1;
    return no_peer ? "config.flags has RF_NO_PEER" : NULL;
}

rf_result rf_footprint_query(const rf_config *config, int world, rf_footprint *out, rf_error *err)
{
    rf_config c;
    rf_result bad = rfi_config_read(config, &c, err);
    if (bad)
        return bad;
    if (world < 1 || world > RF_MAX_WORLD)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "world is %d, expected 1 to %d", world,
                        RF_MAX_WORLD);
    if (!out)
        return rfi_fail(err, RF_E_ARG, -1, STEP, "out is NULL");
    const rfi_backend *backend = rfi_backend_of(c.backend);
    rf_footprint sum = {0};
    for (int i = 0; i < backend->n_transports; i++) {
        if (rfi_config_forbids(&c, world, backend->transports[i]))
            continue;
        rfi_layout l = backend->layout(backend->transports[i], c.capacity_bytes);
        sum.device_bytes += c.channels * l.memory.device_bytes;
        sum.host_bytes += c.channels * l.memory.host_bytes;
    }
    *out = sum;
    return RF_OK;
}
