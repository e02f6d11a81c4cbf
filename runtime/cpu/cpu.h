/* Private to the cpu backend. cpu.c: the table; facts.c: what this machine is; memory.c: what ranks
 * share; wait.c: what kernels ask of their host; stream.c: queues, capture and replay;
 * workbench.c: what the tuner drives. */
#ifndef RANKFOLD_CPU_H
#define RANKFOLD_CPU_H

#include "core/backend.h"

#define RFI_CPU_HELD (RFI_N_TRANSPORTS * RF_MAX_WORLD)

struct rfi_device {
    rfi_capabilities caps;
    char *hw_text, *env_text;
    int rank, world;
    uint32_t yields;      /* turns of a wait that yield before it sleeps */
    rf_cpu_host host;     /* handed to kernels */
    int fd[RF_MAX_WORLD]; /* own copies of the connections; -1 = none */
    /* 1 for the comm, 1 for each launch in a queue, 1 for each launch in a graph: the last one out
     * frees everything. */
    uint32_t users;
    uint32_t in_flight;                /* launches in queues */
    uint32_t ended;                    /* no launch may touch memory any more */
    unsigned char *held[RFI_CPU_HELD]; /* own memory and imports; NULL = free place */
};

/* facts.c. Allocated texts, NULL without memory: what is there, and what of it and how this rank
 * and all ranks together (group_cpus) may use. */
void rfi_cpu_facts(rfi_capabilities *out);
char *rfi_cpu_hw_text(const rfi_capabilities *caps);
char *rfi_cpu_env_text(const rfi_capabilities *caps, uint32_t group_cpus);

/* memory.c */
rf_result rfi_cpu_allocate(rfi_device *d, uint8_t transport, size_t bytes, rfi_memory *out,
                           rf_error *err);
rf_result rfi_cpu_import(rfi_device *d, uint8_t transport, const rfi_memory *theirs,
                         int same_process, rfi_memory *out, rf_error *err);

/* wait.c */
int rfi_cpu_wait(const rf_params *p, uint32_t peer, rf_flag *flag, uint64_t sequence, rf_step step);
void rfi_cpu_wake(rf_flag *flag);
void rfi_cpu_fail(const rf_params *p, rf_fault_code code, uint32_t culprit, rf_step step,
                  uint64_t sequence, uint64_t expected, uint64_t found);
/* Sets the poison word if it is 0 and wakes whoever sleeps on the region's flags. */
void rfi_cpu_poison(unsigned char *region, uint32_t word);

/* cpu.c */
rf_result rfi_cpu_run(const rf_variant *variant, const rf_params *params);
void rfi_cpu_retain(rfi_device *d);
void rfi_cpu_release(rfi_device *d);

/* stream.c */
rf_result rfi_cpu_enqueue(void *stream, rfi_device *d, const rf_variant *variant,
                          const rf_params *params);
void rfi_cpu_stream_info(void *stream, rfi_stream_info *out);

/* workbench.c */
extern const rfi_workbench rfi_cpu_workbench;

#endif
