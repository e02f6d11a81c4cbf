/* What backends have in common: fault codes of abi.h as results and in words, and the connections
 * that tell of dead ranks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/group.h"

static const struct {
    rf_result result;
    const char *text; /* after "rank 2" */
} faults[] = {
    [RF_FAULT_NONE] = {RF_E_POISONED, "failed"},
    [RF_FAULT_DEADLINE] = {RF_E_TIMEOUT, "did not arrive within the deadline"},
    [RF_FAULT_DEAD] = {RF_E_PEER, "is gone"},
    [RF_FAULT_MISMATCH] = {RF_E_MISMATCH, "made another call"},
    [RF_FAULT_ABORT] = {RF_E_ABORTED, "aborted"},
    [RF_FAULT_GENERATION] = {RF_E_GENERATION, "launched with parameters from before a reset"},
    [RF_FAULT_BUSY] = {RF_E_STREAM, "runs two kernels at once on one channel"},
};
#define N_FAULTS (sizeof faults / sizeof *faults)

rf_result rfi_fault_result(uint32_t code)
{
    return faults[code < N_FAULTS ? code : RF_FAULT_NONE].result;
}

const char *rfi_fault_text(uint32_t code)
{
    return faults[code < N_FAULTS ? code : RF_FAULT_NONE].text;
}

rf_result rfi_group_watch(const rfi_group *group, int fd[RF_MAX_WORLD], rf_error *err)
{
    for (int r = 0; r < group->world; r++) {
        if (group->fd[r] < 0)
            continue;
        fd[r] = fcntl(group->fd[r], F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* as rfi_fd_aside */
        if (fd[r] < 0)
            return rfi_fail(err, RF_E_SYSTEM, group->rank, "open", "connection to rank %d: %s", r,
                            strerror(errno));
    }
    return RF_OK;
}
