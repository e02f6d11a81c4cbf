/* What is in a pack, for people. */
#include "abi.h"
#include "core/codes.h"
#include "core/hash.h"
#include "rankfold.h"

static int fits(const rf_pack *pack)
{
    return pack && pack->abi == RF_ABI && pack->size == sizeof *pack;
}

size_t rf_pack_count(const rf_pack *pack)
{
    return fits(pack) ? pack->n_variants : 0;
}

static const rf_variant *find(const rf_pack *pack, size_t i)
{
    for (uint32_t s = 0; s < pack->n_shards; s++) {
        if (i < pack->shards[s]->n)
            return &pack->shards[s]->variants[i];
        i -= pack->shards[s]->n;
    }
    return NULL;
}

rf_result rf_pack_variant(const rf_pack *pack, size_t i, rf_variant_info *out)
{
    if (!pack || !out)
        return RF_E_ARG;
    if (!fits(pack))
        return RF_E_PACK;
    const rf_variant *v = find(pack, i);
    if (!v)
        return RF_E_ARG;
    rf_variant_info info = {
        .name = v->name,
        .sku = pack->sku,
        .toolchain = pack->toolchain,
        .op = (rf_op)v->op,
        .dtype = (rf_dtype)v->dtype,
        .world = v->world,
        .hidden = v->hidden,
        .algorithm = rfi_algo_text(v->algo),
        .transport = rfi_transport_text(v->transport),
        .wire = rfi_wire_text(v->wire),
        .isa = rfi_isa_text(v->isa),
        .copy = rfi_copy_text(v->copy),
        .unroll = v->unroll,
        .reassoc = (v->flags & RF_VARIANT_REASSOC) != 0,
        .lossy = (v->flags & RF_VARIANT_LOSSY) != 0,
        .dependent = (v->flags & RF_VARIANT_DEPENDENT) != 0,
    };
    rfi_hex(v->hash, info.hash);
    *out = info;
    return RF_OK;
}
