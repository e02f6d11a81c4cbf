/* What the tuner sees of a comm; see group.h. */
#include <stdarg.h>
#include <stdio.h>

#include "core/comm.h"

static rf_result closed(const rf_comm *comm, const char *step, rf_error *err)
{
    return rfi_fail(err, RF_E_CLOSED, comm->rank, step, "the comm is closed");
}

rf_result rfi_allgather(rf_comm *comm, const char *step, const void *in, void *out, size_t bytes,
                        uint32_t timeout_ms, rf_error *err)
{
    if (comm->closed)
        return closed(comm, step, err);
    return rfi_control_allgather(&comm->control, step, in, out, bytes, timeout_ms, err);
}

rf_result rfi_broadcast(rf_comm *comm, const char *step, void *buf, size_t bytes,
                        uint32_t timeout_ms, rf_error *err)
{
    if (comm->closed)
        return closed(comm, step, err);
    return rfi_control_broadcast(&comm->control, step, buf, bytes, timeout_ms, err);
}

rf_result rfi_agree(rf_comm *comm, const char *step, rf_result mine, const rf_error *mine_err,
                    uint32_t timeout_ms, rf_error *err)
{
    if (comm->closed)
        return closed(comm, step, err);
    return rfi_control_agree(&comm->control, step, mine, mine_err, timeout_ms, err);
}

rf_result rfi_same(rf_comm *comm, const char *step, const rfi_term *mine, size_t n, rf_error *err)
{
    uint64_t values[RFI_TERMS], all[RF_MAX_WORLD * RFI_TERMS] = {0};
    for (size_t i = 0; i < n; i++)
        values[i] = mine[i].value;
    rf_result bad =
        rfi_allgather(comm, step, values, all, n * sizeof *values, rfi_timeout_ms(comm), err);
    for (int r = 1; r < comm->world && !bad; r++)
        for (size_t i = 0; i < n && !bad; i++) {
            uint64_t theirs = all[(size_t)r * n + i];
            if (theirs != all[i])
                bad = rfi_fail(err, RF_E_MISMATCH, r, step, "%s is %llu on rank %d, %llu on rank 0",
                               mine[i].name, (unsigned long long)theirs, r,
                               (unsigned long long)all[i]);
        }
    return bad;
}

uint64_t rfi_shape_bytes(const rf_shape *shape)
{
    return shape->rows * shape->hidden * rf_dtype_size(shape->dtype);
}

rfi_key rfi_key_of(const rf_comm *comm, const rf_shape *shape)
{
    return (rfi_key){.hw = &comm->hw,
                     .env = &comm->env,
                     .arch = comm->arch,
                     .op = (uint8_t)shape->op,
                     .world = (uint8_t)comm->world,
                     .dtype = (uint8_t)shape->dtype,
                     .mode = (uint8_t)shape->mode,
                     .admits = rfi_admits(comm),
                     .rows = shape->rows,
                     .hidden = shape->hidden,
                     .bytes = rfi_shape_bytes(shape)};
}

const rfi_fingerprint *rfi_hw(const rf_comm *comm)
{
    return &comm->hw;
}

const rfi_fingerprint *rfi_env(const rf_comm *comm)
{
    return &comm->env;
}

const char *rfi_arch(const rf_comm *comm)
{
    return comm->arch;
}

const char *rfi_toolchain(const rf_comm *comm)
{
    return comm->toolchain;
}

const rfi_workbench *rfi_workbench_of(const rf_comm *comm, rfi_device **device)
{
    *device = comm->device;
    return comm->backend->workbench;
}

uint32_t rfi_max_grid(const rf_comm *comm)
{
    return comm->max_grid;
}

rf_store *rfi_store(const rf_comm *comm)
{
    return comm->rank == 0 ? comm->config.store : NULL;
}

uint64_t rfi_capacity(const rf_comm *comm)
{
    return comm->config.capacity_bytes;
}

uint32_t rfi_timeout_ms(const rf_comm *comm)
{
    return comm->config.create_timeout_ms;
}

void rfi_log(const rf_comm *comm, int level, const char *format, ...)
{
    if (!comm->config.log)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    comm->config.log(comm->config.log_ctx, level, line);
}

void rfi_set_deadline(rf_comm *comm, int channel, uint32_t deadline_ms)
{
    uint32_t ms = deadline_ms ? deadline_ms : comm->config.deadline_ms;
    for (int t = 0; t < RFI_N_TRANSPORTS; t++)
        comm->channels[channel].params[t].deadline_ns = (uint64_t)ms * 1000000u;
}

void rfi_set_tuning(rf_comm *comm, int open)
{
    __atomic_store_n(&comm->tuning, open, __ATOMIC_RELAXED);
}

int rf_can_profile(const rf_comm *comm)
{
    return comm ? __atomic_load_n(&comm->tuning, __ATOMIC_RELAXED) : 0;
}

int rf_comm_rank(const rf_comm *comm)
{
    return comm ? comm->rank : -1;
}

int rf_comm_world(const rf_comm *comm)
{
    return comm ? comm->world : 0;
}
