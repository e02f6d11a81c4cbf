/* What kernels ask of their host: waiting beyond a spin, waking, failing.
 *
 * A wait yields some turns (eight ranks on two cores have to let each other run), then sleeps on a
 * shared futex in slices. Where a yield costs a time slice, since others compute on this cpu, this
 * wait and the next ones sleep at once: who is woken runs before who computes. A wake-up may be
 * missed: the publisher stores the sequence number and then looks at `sleepers` without a fence
 * between, so it may look too early. That costs one slice, never a hang, and keeps the fence out of
 * every call. Between turns a wait looks at its own poison word (one load: whoever fails writes it
 * into every rank's region), between slices at the clock and at the connections of the ranks that
 * have not arrived. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/socket.h"
#include "cpu/cpu.h"

#define SLICE_NS   1000000 /* of sleep */
#define CLOCK_TURN 32      /* yields between two looks at the clock */
#define LOST_NS    1000000 /* a yield that took so long let somebody compute */
#define SHY_WAITS  64      /* that sleep at once after such a yield */

static _Thread_local uint32_t shy; /* so many waits still do */

static rf_region *region(const rf_params *p, uint32_t rank)
{
    return (rf_region *)(void *)p->peer[rank];
}

/* The half of the sequence number that changes: futexes are 32 bits wide. */
static uint32_t *futex_word(rf_flag *flag)
{
    unsigned char *low = (unsigned char *)&flag->sequence;
    return (uint32_t *)(void *)(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? low : low + 4);
}

void rfi_cpu_wake(rf_flag *flag)
{
    syscall(SYS_futex, futex_word(flag), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void rfi_cpu_poison(unsigned char *at, uint32_t word)
{
    rf_region *r = (rf_region *)(void *)at;
    uint32_t healthy = 0;
    __atomic_compare_exchange_n(&r->control.poison, &healthy, word, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&r->arrive.sleepers, __ATOMIC_RELAXED))
        rfi_cpu_wake(&r->arrive);
    if (__atomic_load_n(&r->answer.sleepers, __ATOMIC_RELAXED))
        rfi_cpu_wake(&r->answer);
}

/* The first fault of a region stays. Only the owner's kernel writes here, one at a time; `code`
 * goes last, for hosts that look on. */
static void record(const rf_params *p, uint32_t code, uint32_t culprit, rf_step step,
                   uint64_t sequence, uint64_t expected, uint64_t found)
{
    rf_fault *f = &region(p, p->rank)->fault;
    if (__atomic_load_n(&f->code, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&f->culprit, culprit, __ATOMIC_RELAXED);
    __atomic_store_n(&f->step, (uint32_t)step, __ATOMIC_RELAXED);
    __atomic_store_n(&f->sequence, sequence, __ATOMIC_RELAXED);
    __atomic_store_n(&f->expected, expected, __ATOMIC_RELAXED);
    __atomic_store_n(&f->found, found, __ATOMIC_RELAXED);
    __atomic_store_n(&f->code, code, __ATOMIC_RELEASE);
}

void rfi_cpu_fail(const rf_params *p, rf_fault_code code, uint32_t culprit, rf_step step,
                  uint64_t sequence, uint64_t expected, uint64_t found)
{
    const rfi_device *d = p->host_ctx;
    record(p, code, culprit, step, sequence, expected, found);
    for (int r = 0; r < d->world; r++)
        rfi_cpu_poison(p->peer[(p->rank + (uint32_t)r) % (uint32_t)d->world],
                       RF_POISON(culprit, code));
}

static int dead(const rfi_device *d, uint32_t rank)
{
    return rfi_socket_gone(d->fd[rank]);
}

/* A rank that is gone and without which this call can never end; -1 = none. Flags are read after
 * the end-of-file: what a rank announced before it went counts. */
static int find_dead(const rf_params *p, uint32_t peer, const rf_flag *flag, uint64_t sequence)
{
    const rfi_device *d = p->host_ctx;
    for (uint32_t r = 0; r < (uint32_t)d->world; r++) {
        if (r == p->rank || !dead(d, r))
            continue;
        const rf_flag *awaited = r == peer ? flag : &region(p, r)->arrive;
        if (__atomic_load_n(&awaited->sequence, __ATOMIC_ACQUIRE) < sequence)
            return (int)r;
    }
    return -1;
}

/* Who holds everybody up? Of a two-shot's ranks, one that misses an answer often waits for a rank
 * that itself waits for a third: the rank that has arrived the least is to blame. */
static uint32_t blame(const rf_params *p, uint32_t peer, uint64_t sequence)
{
    const rfi_device *d = p->host_ctx;
    uint32_t culprit = peer;
    uint64_t least = __atomic_load_n(&region(p, peer)->arrive.sequence, __ATOMIC_RELAXED);
    for (uint32_t r = 0; r < (uint32_t)d->world; r++) {
        uint64_t at = __atomic_load_n(&region(p, r)->arrive.sequence, __ATOMIC_RELAXED);
        if (r != p->rank && at < least && at < sequence) {
            least = at;
            culprit = r;
        }
    }
    return culprit;
}

static void sleep_on(rf_flag *flag, uint64_t sequence)
{
    struct timespec slice = {.tv_nsec = SLICE_NS};
    __atomic_add_fetch(&flag->sleepers, 1, __ATOMIC_SEQ_CST);
    uint64_t now = __atomic_load_n(&flag->sequence, __ATOMIC_SEQ_CST);
    if (now < sequence)
        syscall(SYS_futex, futex_word(flag), FUTEX_WAIT, (uint32_t)now, &slice, NULL, 0);
    __atomic_sub_fetch(&flag->sleepers, 1, __ATOMIC_SEQ_CST);
}

int rfi_cpu_wait(const rf_params *p, uint32_t peer, rf_flag *flag, uint64_t sequence, rf_step step)
{
    const rfi_device *d = p->host_ctx;
    const rf_control *own = &region(p, p->rank)->control;
    uint64_t start = 0;
    uint32_t yields = d->yields;
    if (shy)
        shy--, yields = 0;
    for (uint32_t turn = 0;; turn++) {
        uint64_t found = __atomic_load_n(&flag->sequence, __ATOMIC_ACQUIRE);
        if (found >= sequence)
            return 0;
        uint32_t poison = __atomic_load_n(&own->poison, __ATOMIC_RELAXED);
        if (poison) {
            record(p, RF_POISON_CODE(poison), RF_POISON_CULPRIT(poison), step, sequence, sequence,
                   found);
            return 1;
        }
        int sleeping = turn >= yields;
        if (sleeping || turn % CLOCK_TURN == CLOCK_TURN - 1) {
            uint64_t now = rfi_now_ns();
            start = start ? start : now;
            int gone = find_dead(p, peer, flag, sequence);
            if (gone >= 0) {
                rfi_cpu_fail(p, RF_FAULT_DEAD, (uint32_t)gone, step, sequence, sequence, found);
                return 1;
            }
            if (now - start > p->deadline_ns) {
                rfi_cpu_fail(p, RF_FAULT_DEADLINE, blame(p, peer, sequence), step, sequence,
                             sequence, found);
                return 1;
            }
        }
        if (sleeping) {
            sleep_on(flag, sequence);
            continue;
        }
        uint64_t left = rfi_now_ns();
        sched_yield();
        if (rfi_now_ns() - left > LOST_NS)
            shy = SHY_WAITS, yields = 0;
    }
}
