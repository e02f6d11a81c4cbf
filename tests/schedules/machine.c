#undef _FORTIFY_SOURCE /* a longjmp between stacks is no mistake here */
#include "machine.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define STACK_BYTES 65536
#define IDLE_STEPS  8000000u /* far more than any run takes */

typedef enum fibre_state { RUNNABLE, AT_BARRIER, WAITING, DONE } fibre_state;

typedef struct fibre {
    ucontext_t start;
    jmp_buf here; /* once it has started; saves no signal mask, which would be a system call */
    int started;
    char *stack;
    struct kernel *kernel;
    uint32_t thread, block;
    fibre_state state;
    int triggered;
    int holds;         /* what it brought to the barrier, then what came out */
    uint32_t came;     /* to so many barriers */
    uint64_t seen;     /* stores of its block up to here lie before it */
    uint64_t acquired; /* what had arrived by this step it will not read as it was before */
} fibre;

typedef struct kernel {
    struct kernel *next, *before; /* before: of the same stream, until that one has ended */
    machine_kernel entry;
    rf_params params;
    uint32_t rank, grid, threads, n_done;
    int dependent;
    fibre *fibres;      /* NULL until started */
    uint32_t in_flight; /* stores to own memory */
} kernel;

/* A store on its way. */
typedef struct flight {
    uint32_t *at, word[4];
    uint32_t words, rank;
    uint64_t serial;
    kernel *kernel; /* of stores to own memory, else NULL */
    uint32_t block, thread;
} flight;

struct machine {
    machine_config config;
    uint64_t random, steps;
    unsigned char *region[RF_MAX_WORLD];
    size_t region_bytes;
    rf_control controls[RF_MAX_WORLD][RF_CONTROLS]; /* host transport */
    rf_page page[RF_MAX_WORLD];
    uint32_t *before[RF_MAX_WORLD];  /* of the ring: each word before its last change, */
    uint64_t *changed[RF_MAX_WORLD]; /* and the step of that */
    uint64_t paused[RF_MAX_WORLD];
    uint64_t abort_at;
    uint32_t aborted;
    int torn;
    kernel *first[RF_MAX_WORLD],
        *last[RF_MAX_WORLD]; /* streams; the first may be running, and the second */
    flight *flights;
    size_t n_flights, room;
    uint64_t serial; /* of the last store */
    uint32_t weight[RF_MAX_WORLD];
    jmp_buf scheduler;
    fibre *current;
};

static machine *running; /* one at a time */

uint32_t machine_random(machine *m, uint32_t below)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t)((m->random >> 20) % below);
}

static rf_control *control(const machine *m, uint32_t rank)
{
    return m->config.host ? (rf_control *)(uintptr_t)m->controls[rank]
                          : (rf_control *)(void *)m->region[rank];
}

/* Tags of wire tag as the calls before `epoch` have left them, which were all as small as can be:
 * every second one of a slot looks after some vectors.
 */
static void tag_slots(machine *m, uint32_t rank)
{
    uint32_t kept = m->config.kept;
    uint64_t n = m->config.slot_bytes / 16 / kept, epoch = m->config.epoch;
    for (uint64_t e = epoch - (epoch < 4 * n ? epoch : 4 * n); e < epoch; e++) {
        unsigned char *slot = m->region[rank] + RF_REGION_HEADER + e % 2 * m->config.slot_bytes;
        rf_pack16 *at = (rf_pack16 *)(void *)slot + e / 4 % n * kept;
        for (uint32_t i = 0; i < kept && e / 2 % 2 == 0; i++) {
            at[i].w[3] = ((uint32_t)(e + 1) & m->config.tag_mask) << 16;
        }
    }
}

machine *machine_create(const machine_config *config)
{
    machine *m = calloc(1, sizeof *m);
    m->config = *config;
    m->random = config->seed * 0x9e3779b97f4a7c15u + 0x1234567;
    running = m;
    m->region_bytes = config->host ? RF_HOST_REGION_BYTES(config->slot_bytes)
                                   : RF_PEER_REGION_BYTES(config->slot_bytes);
    for (uint32_t r = 0; r < config->world; r++) {
        size_t words = (m->region_bytes - RF_RING_AT(config->slot_bytes)) / 4;
        m->before[r] = calloc(words, sizeof *m->before[r]);
        m->changed[r] = calloc(words, sizeof *m->changed[r]);
        m->region[r] = aligned_alloc(4096, (m->region_bytes + 4095) / 4096 * 4096);
        memset(m->region[r], 0, m->region_bytes);
        if (config->host) {
            tag_slots(m, r);
        } else {
            memset(m->region[r] + RF_REGION_HEADER, 0xff, RF_SLOTS * config->slot_bytes);
        }
        for (uint32_t i = 0; i < RF_CONTROLS; i++) {
            control(m, r)[i].epoch = config->epoch;
            control(m, r)[i].generation = 1;
        }
        m->weight[r] = 1;
    }
    return m;
}

static void kernel_free(kernel *k)
{
    for (uint32_t i = 0; k->fibres && i < k->grid * k->threads; i++) {
        free(k->fibres[i].stack);
    }
    free(k->fibres);
    free(k);
}

void machine_destroy(machine *m)
{
    for (uint32_t r = 0; r < m->config.world; r++) {
        while (m->first[r]) {
            kernel *k = m->first[r];
            m->first[r] = k->next;
            kernel_free(k);
        }
        free(m->region[r]);
        free(m->before[r]);
        free(m->changed[r]);
    }
    free(m->flights);
    free(m);
}

void machine_launch(machine *m, uint32_t rank, machine_kernel entry, uint32_t grid,
                    uint32_t threads, int dependent, rf_params params)
{
    kernel *k = calloc(1, sizeof *k);
    k->entry = entry, k->rank = rank, k->grid = grid, k->threads = threads;
    k->dependent = dependent, k->params = params, k->before = m->last[rank];
    for (uint32_t r = 0; r < m->config.world; r++) {
        k->params.peer[r] = m->region[r];
    }
    k->params.control = control(m, rank);
    k->params.rank = rank;
    k->params.grid = grid;
    k->params.slot_bytes = m->config.slot_bytes;
    k->params.kib_clocks = m->config.kib_clocks;
    k->params.deadline_ns = m->config.deadline;
    k->params.host_ctx = &m->page[rank];
    if (m->last[rank]) {
        m->last[rank]->next = k;
    } else {
        m->first[rank] = k;
    }
    m->last[rank] = k;
}

static void fibre_main(void)
{
    fibre *f = running->current;
    f->kernel->entry(f->kernel->params);
    f->state = DONE;
    f->kernel->n_done++;
    for (;;) {
        machine_step();
    }
}

static void kernel_start(kernel *k)
{
    uint32_t n = k->grid * k->threads;
    k->fibres = calloc(n, sizeof *k->fibres);
    for (uint32_t i = 0; i < n; i++) {
        fibre *f = &k->fibres[i];
        f->kernel = k, f->thread = i % k->threads, f->block = i / k->threads;
        f->acquired = running->steps;
        f->stack = malloc(STACK_BYTES);
        getcontext(&f->start);
        f->start.uc_stack.ss_sp = f->stack;
        f->start.uc_stack.ss_size = STACK_BYTES;
        f->start.uc_link = NULL;
        makecontext(&f->start, fibre_main, 0);
    }
}

/* May the stream's next kernel start while this one runs? */
static int lets_dependents(const kernel *k)
{
    for (uint32_t i = 0; i < k->grid * k->threads; i++) {
        if (!k->fibres[i].triggered && k->fibres[i].state != DONE) {
            return 0;
        }
    }
    return 1;
}

static void stream_advance(machine *m, uint32_t rank)
{
    kernel *k = m->first[rank];
    if (k && k->fibres && k->n_done == k->grid * k->threads && k->in_flight == 0) {
        m->first[rank] = k->next;
        if (k->next) {
            k->next->before = NULL;
        } else {
            m->last[rank] = NULL;
        }
        kernel_free(k);
        k = m->first[rank];
    }
    if (k && !k->fibres) {
        kernel_start(k);
    } else if (k && k->next && !k->next->fibres && k->next->dependent && lets_dependents(k)) {
        kernel_start(k->next);
    }
}

static void barrier_release(kernel *k, uint32_t block)
{
    fibre *f = &k->fibres[block * k->threads];
    uint32_t most = 0, least = UINT32_MAX;
    for (uint32_t i = 0; i < k->threads; i++) {
        most = f[i].state == AT_BARRIER && f[i].came > most ? f[i].came : most;
        least = f[i].state != DONE && f[i].came < least ? f[i].came : least;
    }
    if (least < most) {
        return;
    }
    int holds = 0;
    uint64_t acquired = 0;
    for (uint32_t i = 0; i < k->threads; i++) {
        holds |= f[i].state == AT_BARRIER && f[i].holds;
        acquired = f[i].acquired > acquired ? f[i].acquired : acquired;
    }
    for (uint32_t i = 0; i < k->threads; i++) {
        f[i].state = f[i].state == AT_BARRIER ? RUNNABLE : f[i].state;
        f[i].holds = holds;
        f[i].seen = running->serial;
        f[i].acquired = acquired;
    }
}

static void fibre_run(machine *m, fibre *f)
{
    m->current = f;
    if (setjmp(m->scheduler) == 0) {
        if (f->started) {
            longjmp(f->here, 1);
        }
        f->started = 1;
        setcontext(&f->start);
    }
    if (f->state == AT_BARRIER || f->state == DONE) {
        barrier_release(f->kernel, f->block);
    }
}

static int lies_in(const void *at, const void *from, size_t bytes)
{
    return (uintptr_t)at >= (uintptr_t)from && (uintptr_t)at < (uintptr_t)from + bytes;
}

/* Index of a word of rank's ring, -1: it is none. */
static ptrdiff_t ring_word(const machine *m, uint32_t rank, const uint32_t *at)
{
    const unsigned char *ring = m->region[rank] + RF_RING_AT(m->config.slot_bytes);
    const unsigned char *end = m->region[rank] + m->region_bytes;
    return lies_in(at, ring, (size_t)(end - ring)) ? ((const unsigned char *)at - ring) / 4 : -1;
}

/* What the host has been told must not change, and be complete when it is told. */
static void arrives(machine *m, const flight *f)
{
    ptrdiff_t word = ring_word(m, f->rank, f->at);
    const rf_page *page = &m->page[f->rank];
    m->torn |= lies_in(f->at, page, sizeof *page) && page->poison;
    for (uint32_t i = 0; word >= 0 && i < f->words; i++) {
        m->before[f->rank][word + i] = f->at[i];
        m->changed[f->rank][word + i] = m->steps;
    }
    memcpy(f->at, f->word, f->words * sizeof *f->word);
}

static void deliver(machine *m, size_t i)
{
    for (size_t j = 0; j < i; j++) { /* the oldest of this address goes first */
        if (m->flights[j].at == m->flights[i].at) {
            i = j;
        }
    }
    flight *f = &m->flights[i];
    arrives(m, f);
    if (f->kernel) {
        f->kernel->in_flight--;
    }
    memmove(f, f + 1, (--m->n_flights - i) * sizeof *f);
}

static void run_somebody(machine *m, uint32_t rank)
{
    kernel *k = m->first[rank];
    if (k && k->next && k->next->fibres && machine_random(m, 2)) {
        k = k->next;
    }
    if (!k || !k->fibres) {
        return;
    }
    uint32_t n = k->grid * k->threads, from = machine_random(m, n);
    for (uint32_t i = 0; i < n; i++) {
        fibre *f = &k->fibres[(from + i) % n];
        if (f->state == WAITING && !k->before) {
            f->state = RUNNABLE;
        }
        if (f->state == RUNNABLE) {
            fibre_run(m, f);
            return;
        }
    }
}

int machine_run(machine *m)
{
    uint32_t arrival = 1 + machine_random(m, 16); /* of 17 turns, how many go to the links */
    running = m;
    for (m->steps = 0; m->steps < IDLE_STEPS; m->steps++) {
        if (m->steps % 512 == 0) { /* now and then somebody is much slower than the others */
            for (uint32_t r = 0; r < m->config.world; r++) {
                m->weight[r] = machine_random(m, 3) ? 64 : 1;
            }
        }
        if (m->steps == m->abort_at && m->abort_at) {
            for (uint32_t r = 0; r < m->config.world; r++) {
                m->page[r].abort = m->aborted >> r & 1;
            }
        }
        uint32_t rank = machine_random(m, m->config.world), left = 0;
        for (uint32_t r = 0; r < m->config.world; r++) {
            left += m->first[r] != NULL;
        }
        if (!left && !m->n_flights) {
            return 0;
        }
        if (m->n_flights && (!left || machine_random(m, 17) < arrival)) {
            deliver(m, machine_random(m, (uint32_t)m->n_flights));
        } else if (machine_random(m, 64) < m->weight[rank]) {
            stream_advance(m, rank);
            run_somebody(m, rank);
        }
    }
    return -1;
}

int machine_region_is_clean(const machine *m, uint32_t rank)
{
    const unsigned char *slots = m->region[rank] + RF_REGION_HEADER;
    for (size_t i = 0; i < RF_SLOTS * m->config.slot_bytes && !m->config.host; i++) {
        if (slots[i] != 0xff) {
            return 0;
        }
    }
    for (uint32_t i = 0; i < RF_CONTROLS; i++) {
        if (control(m, rank)[i].busy) {
            return 0;
        }
    }
    return 1;
}

int machine_is_poisoned(const machine *m, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < RF_CONTROLS; i++) {
        n += control(m, rank)[i].poison != 0;
    }
    return n == RF_CONTROLS;
}

void machine_abort(machine *m, uint32_t ranks, uint64_t step)
{
    m->aborted = ranks;
    m->abort_at = step;
}

int machine_is_torn(const machine *m)
{
    return m->torn;
}

uint64_t machine_paused(const machine *m, uint32_t rank)
{
    return m->paused[rank];
}

const rf_page *machine_page(const machine *m, uint32_t rank)
{
    return &m->page[rank];
}

uint32_t machine_thread(void)
{
    return running->current->thread;
}

uint32_t machine_block(void)
{
    return running->current->block;
}

uint32_t machine_grid(void)
{
    return running->current->kernel->grid;
}

void machine_step(void)
{
    if (setjmp(running->current->here) == 0) {
        longjmp(running->scheduler, 1);
    }
}

uint32_t machine_load(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}

uint32_t machine_load_own(const uint32_t *at)
{
    const machine *m = running;
    const fibre *me = m->current;
    for (size_t i = m->n_flights; i-- > 0;) {
        const flight *f = &m->flights[i];
        if (f->at == at && f->kernel == me->kernel && f->block == me->block &&
            f->thread == me->thread) {
            return f->word[0];
        }
    }
    return machine_load(at);
}

/* Whose memory is it? The world, if it is the caller's, which has one reader. */
static uint32_t owner_of(const machine *m, const void *at)
{
    for (uint32_t r = 0; r < m->config.world; r++) {
        if (lies_in(at, m->region[r], m->region_bytes) ||
            lies_in(at, m->controls[r], sizeof m->controls[r]) ||
            lies_in(at, &m->page[r], sizeof m->page[r])) {
            return r;
        }
    }
    return m->config.world;
}

uint32_t machine_load_sys(const uint32_t *at)
{
    machine *m = running;
    uint32_t rank = owner_of(m, at);
    ptrdiff_t word = rank < m->config.world ? ring_word(m, rank, at) : -1;
    if (word >= 0 && m->changed[rank][word] > m->current->acquired && machine_random(m, 2)) {
        return m->before[rank][word];
    }
    return machine_load(at);
}

int machine_is_slot(const void *at)
{
    const machine *m = running;
    uint32_t rank = owner_of(m, at);
    return rank < m->config.world &&
           lies_in(at, m->region[rank] + RF_REGION_HEADER, RF_SLOTS * m->config.slot_bytes);
}

static void store(uint32_t *at, const uint32_t *word, uint32_t words)
{
    machine *m = running;
    const fibre *me = m->current;
    uint32_t rank = owner_of(m, at);
    if (rank == m->config.world) {
        memcpy(at, word, words * sizeof *word);
        return;
    }
    if (m->n_flights == m->room) {
        m->room = m->room ? 2 * m->room : 256;
        m->flights = realloc(m->flights, m->room * sizeof *m->flights);
    }
    kernel *own = rank == me->kernel->rank ? me->kernel : NULL;
    flight *f = &m->flights[m->n_flights++];
    *f = (flight){.at = at, .words = words, .rank = rank, .serial = ++m->serial, .kernel = own};
    f->block = me->block, f->thread = me->thread;
    memcpy(f->word, word, words * sizeof *word);
    if (own) {
        own->in_flight++;
    }
}

/* Words of a region linger. */
void machine_store(uint32_t *at, uint32_t word)
{
    store(at, &word, 1);
}

static int is_single(const void *at)
{
    const machine *m = running;
    uint32_t rank = owner_of(m, at);
    return m->config.host && m->config.flaw != FLAW_TEARING && rank < m->config.world &&
           lies_in(at, m->region[rank], RF_RING_AT(m->config.slot_bytes));
}

int machine_load16(const void *at, rf_pack16 *v)
{
    if (!is_single(at)) {
        return 0;
    }
    memcpy(v, at, sizeof *v);
    return 1;
}

int machine_store16(void *at, rf_pack16 v)
{
    if (!is_single(at)) {
        return 0;
    }
    store(at, v.w, 4);
    return 1;
}

void machine_fence(void)
{
    machine *m = running;
    const fibre *me = m->current;
    for (size_t i = 0; i < m->n_flights && m->config.flaw != FLAW_NO_FENCE;) {
        const flight *f = &m->flights[i];
        if (f->kernel == me->kernel && f->block == me->block &&
            (f->serial <= me->seen || f->thread == me->thread)) {
            deliver(m, i);
        } else {
            i++;
        }
    }
    machine_acquire();
}

void machine_acquire(void)
{
    running->current->acquired = running->steps;
}

void machine_store_u64(void *at, uint64_t v)
{
    uint32_t word[2] = {(uint32_t)v, (uint32_t)(v >> 32)};
    store(at, word, 2);
}

void machine_store_now(uint32_t *at, uint32_t word)
{
    *(volatile uint32_t *)at = word;
}

int machine_barrier(int holds)
{
    fibre *me = running->current;
    me->came++;
    me->holds = holds;
    if (running->config.flaw == FLAW_EARLY_FLAG && me->thread == 0) {
        me->seen = running->serial;
    } else {
        me->state = AT_BARRIER;
    }
    machine_step();
    return me->holds;
}

void machine_wait(void)
{
    if (running->current->kernel->before) {
        running->current->state = WAITING;
    }
    machine_step();
    machine_acquire();
}

void machine_trigger(void)
{
    running->current->triggered = 1;
    machine_step();
}

void machine_pause(uint32_t clocks)
{
    running->paused[running->current->kernel->rank] += clocks;
    while (clocks--) {
        machine_step();
    }
}

uint64_t machine_time(void)
{
    return running->steps + 1;
}

machine_flaw machine_flawed(void)
{
    return running->config.flaw;
}

uint32_t machine_slots(void)
{
    return running->config.flaw == FLAW_ONE_SLOT ? 1 : 2;
}

uint32_t machine_half(void)
{
    return 6 * 2 * 16 * running->config.world;
}

uint32_t machine_kept(void)
{
    return running->config.kept;
}

uint32_t machine_tag_mask(void)
{
    return running->config.flaw == FLAW_NO_TAG ? 0 : running->config.tag_mask;
}
