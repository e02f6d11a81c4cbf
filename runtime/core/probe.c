/* Does shared memory work, in both directions of every pair? Each rank stores a pattern into its
 * own memory, every peer checks it and stores an answer, the owner checks the answers. Nothing that
 * a driver or kernel claims is trusted. The patterns hold the tokens of this very group, so that
 * memory left over from another cannot pass. */
#include <stdio.h>
#include <string.h>

#include "core/comm.h"
#include "core/hash.h"

#define PATTERN 64

typedef struct pattern {
    unsigned char byte[PATTERN];
} pattern;

/* What `writer` stores for `reader`; writer == reader is the owner's own. */
static pattern expected(const rf_comm *comm, int writer, int reader)
{
    struct {
        unsigned char writer[RFI_TOKEN], reader[RFI_TOKEN];
        uint32_t ranks[2], part;
    } seed;
    pattern p;
    memset(&seed, 0, sizeof seed);
    memcpy(seed.writer, comm->control.token[writer], RFI_TOKEN);
    memcpy(seed.reader, comm->control.token[reader], RFI_TOKEN);
    seed.ranks[0] = (uint32_t)writer;
    seed.ranks[1] = (uint32_t)reader;
    for (seed.part = 0; seed.part < PATTERN / 16; seed.part++)
        rfi_hash128(&seed, sizeof seed, p.byte + 16 * seed.part);
    return p;
}

/* In `owner`'s memory: at the start of a slot, and at the very end of the allocation. */
static unsigned char *place(const rf_comm *comm, int transport, int owner, int writer, int at_end)
{
    size_t offset = (size_t)writer * PATTERN, bytes = comm->transport[transport].own.bytes;
    unsigned char *base = rfi_region(comm, transport, owner, 0);
    return at_end ? base + bytes - PATTERN - offset : base + RF_REGION_HEADER + offset;
}

static rf_result store(rf_comm *comm, int transport, int owner, rf_error *err)
{
    pattern p = expected(comm, comm->rank, owner);
    for (int at_end = 0; at_end < 2; at_end++) {
        rf_result bad = comm->backend->put(
            comm->device, place(comm, transport, owner, comm->rank, at_end), p.byte, PATTERN);
        if (bad)
            return rfi_fail(err, bad, comm->rank, "probe", "cannot store into rank %d's memory",
                            owner);
    }
    return RF_OK;
}

static rf_result check(rf_comm *comm, int transport, int owner, int writer, rf_error *err)
{
    pattern want = expected(comm, writer, owner), got;
    for (int at_end = 0; at_end < 2; at_end++) {
        rf_result bad = comm->backend->get(
            comm->device, place(comm, transport, owner, writer, at_end), got.byte, PATTERN);
        if (bad)
            return rfi_fail(err, bad, comm->rank, "probe", "cannot load from rank %d's memory",
                            owner);
        if (memcmp(&want, &got, PATTERN))
            return rfi_fail(err, RF_E_BACKEND, writer, "probe",
                            "stores of rank %d into rank %d's memory are not seen by rank %d",
                            writer, owner, comm->rank);
    }
    return RF_OK;
}

rf_result rfi_probe(rf_comm *comm, int transport, uint32_t timeout_ms, rf_error *err)
{
    rf_error mine = {0};
    rf_result bad = store(comm, transport, comm->rank, &mine);
    bad = rfi_agree(comm, "probe", bad, &mine, timeout_ms, err);
    if (bad)
        return bad;
    for (int r = 0; r < comm->world && !bad; r++)
        if (r != comm->rank) {
            bad = check(comm, transport, r, r, &mine);
            if (!bad)
                bad = store(comm, transport, r, &mine);
        }
    bad = rfi_agree(comm, "probe", bad, &mine, timeout_ms, err);
    if (bad)
        return bad;
    for (int r = 0; r < comm->world && !bad; r++)
        bad = check(comm, transport, comm->rank, r, &mine);
    return rfi_agree(comm, "probe", bad, &mine, timeout_ms, err);
}
