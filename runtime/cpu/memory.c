/* Memory that ranks share, as far as launches in flight keep it. */
#include <unistd.h>

#include "core/group.h"
#include "core/shared.h"
#include "cpu/cpu.h"

/* Takes the user over, failing too. */
static rf_result hold(rfi_device *d, unsigned char *base, rf_error *err)
{
    for (int i = 0; i < RFI_CPU_HELD; i++)
        if (!d->held[i]) {
            d->held[i] = base;
            return RF_OK;
        }
    rfi_shared_leave(base);
    return rfi_fail(err, RF_E_MEMORY, d->rank, "map", "more imports than ranks");
}

rf_result rfi_cpu_allocate(rfi_device *d, uint8_t transport, size_t bytes, rfi_memory *out,
                           rf_error *err)
{
    (void)transport;
    unsigned char *base;
    int fd;
    rf_result bad = rfi_shared_create(bytes, -1, &base, &fd, err);
    if (bad)
        return bad;
    bad = hold(d, base, err);
    if (bad)
        close(fd);
    else
        *out = (rfi_memory){.base = base, .host = base, .bytes = bytes, .fd = fd};
    return bad;
}

rf_result rfi_cpu_import(rfi_device *d, uint8_t transport, const rfi_memory *theirs,
                         int same_process, rfi_memory *out, rf_error *err)
{
    (void)transport;
    unsigned char *base = theirs->host;
    rf_result bad = same_process ? rfi_shared_join(base, theirs->bytes, err)
                                 : rfi_shared_map(theirs->fd, theirs->bytes, &base, err);
    if (!bad)
        bad = hold(d, base, err);
    if (!bad)
        *out = (rfi_memory){.base = base, .host = base, .bytes = theirs->bytes, .fd = -1};
    return bad;
}
