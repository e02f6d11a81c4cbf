#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define STACK_BYTES 65536
#define IDLE_STEPS  4000000u /* far more than any run takes */

typedef enum fibre_state { RUNNABLE, AT_BARRIER, WAITING, DONE } fibre_state;

typedef struct fibre {
    ucontext_t context;
    char *stack;
    struct kernel *kernel;
    uint32_t thread, block;
    fibre_state state;
    int triggered;
} fibre;

typedef struct kernel {
    struct kernel *next, *before; /* before: of the same stream, until that one has ended */
    machine_kernel entry;
    rf_params params;
    uint32_t rank, grid, threads, n_done;
    int dependent;
    fibre *fibres;      /* NULL until started */
    uint32_t in_flight; /* stores to the own region */
} kernel;

typedef struct flight {
    uint32_t *at, word;
    uint32_t rank;
    kernel *kernel; /* of stores to the own region, else NULL */
} flight;

struct machine {
    machine_config config;
    uint64_t random, steps;
    unsigned char *region[RF_MAX_WORLD];
    size_t region_bytes;
    rf_page page[RF_MAX_WORLD];
    kernel *first[RF_MAX_WORLD],
        *last[RF_MAX_WORLD]; /* streams; the first may be running, and the second */
    flight *flights;
    size_t n_flights, room;
    uint32_t weight[RF_MAX_WORLD];
    ucontext_t scheduler;
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

machine *machine_create(const machine_config *config)
{
    machine *m = calloc(1, sizeof *m);
    m->config = *config;
    m->random = config->seed * 0x9e3779b97f4a7c15u + 0x1234567;
    m->region_bytes = RF_REGION_HEADER + RF_SLOTS * config->slot_bytes;
    for (uint32_t r = 0; r < config->world; r++) {
        m->region[r] = aligned_alloc(4096, (m->region_bytes + 4095) / 4096 * 4096);
        memset(m->region[r], 0, RF_REGION_HEADER);
        memset(m->region[r] + RF_REGION_HEADER, 0xff, RF_SLOTS * config->slot_bytes);
        rf_control *control = (rf_control *)(void *)m->region[r];
        control->epoch = config->epoch;
        control->generation = 1;
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
    k->params.control = (rf_control *)(void *)m->region[rank];
    k->params.controls = 1;
    k->params.rank = rank;
    k->params.grid = grid;
    k->params.slot_bytes = m->config.flaw == FLAW_ONE_SLOT ? 0 : m->config.slot_bytes;
    k->params.generation = 1;
    k->params.deadline_ns = UINT64_MAX / 4;
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
        swapcontext(&f->context, &running->scheduler);
    }
}

static void kernel_start(kernel *k)
{
    uint32_t n = k->grid * k->threads;
    k->fibres = calloc(n, sizeof *k->fibres);
    for (uint32_t i = 0; i < n; i++) {
        fibre *f = &k->fibres[i];
        f->kernel = k, f->thread = i % k->threads, f->block = i / k->threads;
        f->stack = malloc(STACK_BYTES);
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack;
        f->context.uc_stack.ss_size = STACK_BYTES;
        f->context.uc_link = NULL;
        makecontext(&f->context, fibre_main, 0);
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
    for (uint32_t i = 0; i < k->threads; i++) {
        if (f[i].state != AT_BARRIER && f[i].state != DONE) {
            return;
        }
    }
    for (uint32_t i = 0; i < k->threads; i++) {
        f[i].state = f[i].state == AT_BARRIER ? RUNNABLE : f[i].state;
    }
}

static void fibre_run(machine *m, fibre *f)
{
    m->current = f;
    swapcontext(&m->scheduler, &f->context);
    if (f->state == AT_BARRIER || f->state == DONE) {
        barrier_release(f->kernel, f->block);
    }
}

static void deliver(machine *m, size_t i)
{
    for (size_t j = 0; j < i; j++) { /* the oldest of this address goes first */
        if (m->flights[j].at == m->flights[i].at) {
            i = j;
        }
    }
    flight *f = &m->flights[i];
    *f->at = f->word;
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
    for (size_t i = 0; i < RF_SLOTS * m->config.slot_bytes; i++) {
        if (slots[i] != 0xff) {
            return 0;
        }
    }
    return ((const rf_control *)(const void *)m->region[rank])->busy == 0;
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
    swapcontext(&running->current->context, &running->scheduler);
}

uint32_t machine_load(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}

/* Words of a region linger; the caller's tensors have one reader. */
void machine_store(uint32_t *at, uint32_t word)
{
    machine *m = running;
    for (uint32_t r = 0; r < m->config.world; r++) {
        unsigned char *p = (unsigned char *)at;
        if (p >= m->region[r] && p < m->region[r] + m->region_bytes) {
            if (m->n_flights == m->room) {
                m->room = m->room ? 2 * m->room : 256;
                m->flights = realloc(m->flights, m->room * sizeof *m->flights);
            }
            kernel *own = r == m->current->kernel->rank ? m->current->kernel : NULL;
            m->flights[m->n_flights++] = (flight){at, word, r, own};
            if (own) {
                own->in_flight++;
            }
            return;
        }
    }
    *at = word;
}

void machine_store_now(uint32_t *at, uint32_t word)
{
    *(volatile uint32_t *)at = word;
}

void machine_barrier(void)
{
    running->current->state = AT_BARRIER;
    machine_step();
}

void machine_wait(void)
{
    if (running->current->kernel->before) {
        running->current->state = WAITING;
    }
    machine_step();
}

void machine_trigger(void)
{
    running->current->triggered = 1;
    machine_step();
}

uint64_t machine_time(void)
{
    return running->steps + 1;
}

machine_flaw machine_flawed(void)
{
    return running->config.flaw;
}
