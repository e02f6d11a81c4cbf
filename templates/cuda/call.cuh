/* What every kernel does around its payload: entry check, rotation of slots, bounded waits, faults.
 *
 * Rotation. The two slots of a region alternate by an epoch in device memory, one count per call,
 * whatever the grid, the size or the algorithm. Every thread reads it on entry and branches on the
 * same load (poison, generation) before its block arrives; the last block to arrive advances it, so
 * no block of this call can read the new value, and the next call of the stream starts after this
 * one has ended. The arrival comes behind the pushes: nobody waits for it.
 *
 * Two slots suffice. Rank A stores into slot e mod 2 of rank B for call e + 2 only after its own
 * call e + 1 ended. That call needed B's contribution, which B pushed in its call e + 1, hence
 * after B's call e had ended: B has read slot e mod 2 and re-armed it. A need not have heard it
 * from B: no call ends without the sum of at least one pack, in which every rank's pack is, perhaps
 * inside an owner's sum or an island's. This needs that every rank sends in every call and that
 * nothing of a call (first push, epoch read, re-arming) comes before the previous kernel of the
 * stream has ended: with dependent launch, the wait is first. The same holds where A stores into
 * its own slot in host memory and B reads it there, and for the two halves of the ring. */
#ifndef RANKFOLD_CUDA_CALL_CUH
#define RANKFOLD_CUDA_CALL_CUH

#include "cuda/ptx.cuh"

#ifndef RF_CHECK_EVERY       /* polls between looks at clock, poison and abort: */
#define RF_CHECK_EVERY 2048u /* a millisecond for own memory, some for the host's */
#endif
#define RF_GIVE_UP UINT64_MAX

/* Where the peers of a rank poison it. */
RF_DEVICE uint32_t *poison_of(const rf_params *p, uint32_t rank)
{
    return &((rf_control *)(void *)p->peer[rank])->poison;
}

/* Makes a verdict that holds for this rank stick, and copies it to the host's page, fault first,
 * poison word last: once, by the first thread of this rank that gives up, be the verdict its own or
 * a peer's. */
RF_COLD void report(const rf_params *p, uint32_t poison, uint32_t step, uint64_t sequence,
                    uint64_t expected, uint64_t found)
{
    for (uint32_t i = 0; i < RF_CONTROLS; i++) {
        exchange_if_gpu(&p->control[i].poison, 0, poison);
    }
    if (exchange_if_gpu(&p->control->told, 0, 1) != 0) {
        return;
    }
    rf_page *page = (rf_page *)p->host_ctx;
    store_word_sys(&page->fault.code, RF_POISON_CODE(poison));
    store_word_sys(&page->fault.culprit, RF_POISON_CULPRIT(poison));
    store_word_sys(&page->fault.step, step);
    store_u64_sys(&page->fault.sequence, sequence);
    store_u64_sys(&page->fault.expected, expected);
    store_u64_sys(&page->fault.found, found);
    fence_sys();
    store_word_sys(&page->poison, poison);
}

/* The first thread of this rank to fail tells the host and all peers, so that everybody names the
 * same culprit. Where a peer's verdict came first, perhaps since this thread last looked, that one
 * is told. */
RF_COLD void fail(const rf_params *p, uint32_t rank, uint32_t world, uint32_t code,
                  uint32_t culprit, uint32_t step, uint64_t sequence, uint64_t expected,
                  uint64_t found)
{
    uint32_t poison = RF_POISON(culprit, code);
    uint32_t earlier = exchange_if_gpu(&p->control->poison, 0, poison);
    if (earlier) {
        report(p, earlier, step, sequence, 0, earlier);
        return;
    }
    for (uint32_t q = 0; q < world; q++) {
        if (q != rank) {
            store_word_sys(poison_of(p, q), poison);
        }
    }
    report(p, poison, step, sequence, expected, found);
}

typedef struct rf_turn {
    rf_control *line; /* of the family */
    uint32_t ok;
    uint32_t slot; /* 0 or 1 */
    uint64_t epoch;
} rf_turn;

/* The first access of a call: its family's control line. */
RF_DEVICE rf_pack16 begin(const rf_control *line, uint32_t dependent)
{
    if (dependent) {
        dependents_wait();
    }
    return load_sys(line);
}

/* Entry check on what `begin` has loaded. Refuses poisoned channels and params of another
 * generation. */
RF_DEVICE rf_turn enter(const rf_params *p, uint32_t rank, uint32_t world, rf_control *line,
                        rf_pack16 control)
{
    rf_turn turn;
    turn.line = line;
    turn.epoch = control.w[0] | (uint64_t)control.w[1] << 32;
    turn.slot = control.w[0] & (RF_SLOTS - 1);
    turn.ok = control.w[2] == p->generation && control.w[3] == 0;
    if (!turn.ok && thread_index() == 0) {
        if (control.w[3]) {
            report(p, control.w[3], RF_STEP_ENTRY, turn.epoch, 0, control.w[3]);
        } else {
            fail(p, rank, world, RF_FAULT_GENERATION, rank, RF_STEP_ENTRY, turn.epoch, control.w[2],
                 p->generation);
        }
    }
    return turn;
}

/* Every block, with or without work, once, behind its first pushes: the stream's next kernel may be
 * placed. The last of its threads waits for the count: where a block has threads without work, none
 * that polls is kept from it. */
RF_DEVICE void arrive(const rf_turn *turn, uint32_t threads, uint32_t dependent)
{
    if (dependent) {
        dependents_launch();
    }
    block_barrier(); /* all threads of the block have branched on the epoch */
    if (thread_index() == threads - 1 &&
        increment_gpu(&turn->line->busy, grid_size() - 1) == grid_size() - 1) {
        store_u64_sys(&turn->line->epoch, turn->epoch + 1);
    }
}

/* Looks up from a fruitless wait. Returns when this call began to wait (pass it to the next look),
 * or RF_GIVE_UP. In a two-shot, an owner that is itself kept waiting is not to blame: who waits for
 * an answer grants an eighth more, in which the owner's verdict arrives; who waits for one that
 * waits for an answer, two, and so on. */
RF_COLD uint64_t look_up(const rf_params *p, uint32_t rank, uint32_t world, uint32_t culprit,
                         uint32_t step, uint64_t epoch, uint64_t since)
{
    uint64_t now = time_ns();
    uint64_t limit = p->deadline_ns + (step - RF_STEP_ARRIVE) * (p->deadline_ns / 8);
    const rf_page *page = (const rf_page *)p->host_ctx;
    uint32_t poison = load_word_sys(&p->control->poison);
    poison = poison ? poison : load_word_sys(poison_of(p, rank));
    if (poison) {
        report(p, poison, step, epoch, 0, poison);
        return RF_GIVE_UP;
    }
    if (load_word_sys(&page->abort)) {
        fail(p, rank, world, RF_FAULT_ABORT, rank, step, epoch, 0, 0);
        return RF_GIVE_UP;
    }
    if (since && now - since > limit) {
        fail(p, rank, world, RF_FAULT_DEADLINE, culprit, step, epoch, limit, now - since);
        return RF_GIVE_UP;
    }
    return since ? since : now;
}

#endif
