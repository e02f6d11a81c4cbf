/* Ring: raw payload that its owner stores into a buffer of its own, and that peers read there: a
 * pull. Through host memory for large tensors, where the buffer stays in the last-level cache;
 * between peers for switches that collapse under stores from all sides. A block is a lane: with the
 * same block of every peer it goes through the lane's chunks. The buffer holds RF_RING_WINDOW of
 * every lane at a time, or the whole tensor where that is less.
 *
 * Turn k of a lane, on every rank:
 *     workers (all warps but two) have stored chunk k into the own region
 *     block barrier k; before it the watcher has seen that every peer announced turn k - LAG
 *     announcer (a thread): one fence, then the own flag says that turn k is done
 *     workers issue the loads of the peers' chunk k - LAG, store chunk k + 1, then sum
 *     two-shot only: workers read the peers' sums of chunk k - 2 LAG - 1
 * So the posted stores of one chunk, the fence behind the one before and the reads of an older one
 * go on at once, and the watcher polls ahead of the workers. A lane of one chunk has nothing to
 * overlap and a LAG of 1: a one-shot waits at two barriers, a two-shot at four.
 *
 * One-shot: a chunk is a piece of the tensor, everybody reads everybody's. Two-shot: a chunk is a
 * piece of every rank's part; of a rank's copy, owner o reads piece o, and piece `rank`, which
 * nobody needs, becomes the sum. A turn that is announced says: chunk k is stored; so are sums up
 * to chunk k - LAG - 1; chunks up to k - LAG - 1 are read, and sums up to chunk k - 2 LAG - 2. A
 * turn that neither stored a chunk nor follows one that stored a sum is not announced, and nobody
 * waits for it.
 *
 * Window. Chunk c + WINDOW goes over chunk c in turn c + 2 LAG + 2, behind barrier c + 2 LAG + 1,
 * which means that every peer has announced turn c + LAG + 1 (it stored that chunk, since there are
 * later ones), hence has read chunk c. The sum of chunk c + WINDOW is stored LAG turns later and
 * behind the barrier, when every peer has announced turn c + 2 LAG + 2, hence has read the sum of
 * chunk c. So announcements are the only acknowledgement that is needed, and WINDOW = 2 LAG + 2 is
 * the least.
 *
 * Calls. The two halves of the buffer alternate by the epoch, and as for slots (call.cuh) one call
 * between is enough, whatever lanes and chunks the calls have: a rank begins call e + 2 after its
 * call e + 1, in which it saw announcements that every peer made in its call e + 1, when its call
 * e, with all reading, had ended. Flags stay in one place: they only grow, an announcement of a
 * later call stands for all of the earlier ones, and 42 bits of epoch do not come round. */
#ifndef RANKFOLD_CUDA_RING_CUH
#define RANKFOLD_CUDA_RING_CUH

#include "cuda/call.cuh"
#include "cuda/tensor.cuh"

#define RF_RING_LAG 2
#ifndef RF_RING_WINDOW /* tests have windows that are too small */
#define RF_RING_WINDOW (2 * RF_RING_LAG + 2)
#if RF_PEER_HALF_MOST / 16 / RF_MAX_WORLD < RF_RING_WINDOW * (1024 - RF_RING_SERVANTS)
#error "a half does not hold the window of one lane of the largest block"
#endif
#endif
#define RF_RING_WATCHER    (RF_RING_SERVANTS / 2) /* first thread of its warp; 0 is the announcer */
#define RF_RING_CHUNKS     4                      /* that a lane should have at least */
#define RF_RING_MAX_UNROLL 8

typedef struct rf_ring {
    rf_tensor t;
    rf_turn turn;
    uint32_t world, rank, unroll;
    uint32_t parts; /* 1 = one-shot, world = two-shot */
    uint32_t part;  /* packs of each, but the last ones */
    uint32_t span;  /* and of the buffer for each */
    uint32_t workers, worker;
    uint32_t lanes, lane;
    uint32_t rounds; /* packs of a piece that a worker handles, at most unroll */
    uint32_t chunks; /* of this lane */
    uint32_t lag;
} rf_ring;

RF_DEVICE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

RF_DEVICE uint32_t pieces(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Lanes, and chunks so small that there are some for each lane and, where the tensor does not fit
 * into a half, so large that all do for it: the same on every rank. */
RF_DEVICE void ring_divide(rf_ring *r)
{
    uint32_t room = ring_half_bytes(r->t.p) / 16 / r->parts;
    r->part = pieces(r->t.packs, r->parts);
    uint32_t rounds = r->part <= room ? RF_RING_LANES * RF_RING_MAX_UNROLL
                                      : room / (RF_RING_WINDOW * r->workers); /* of all lanes */
    r->lanes = least(least(grid_size(), RF_RING_LANES), rounds);
    r->rounds = least(r->unroll, rounds / r->lanes);
    r->rounds = least(r->rounds, r->part / (RF_RING_CHUNKS * r->lanes * r->workers) + 1);
    r->span = least(r->part, RF_RING_WINDOW * r->lanes * r->rounds * r->workers);
    uint32_t all = pieces(r->part, r->rounds * r->workers);
    r->chunks = all > r->lane && r->lane < r->lanes ? pieces(all - r->lane, r->lanes) : 0;
    r->lag = r->chunks > 1 ? RF_RING_LAG : 1;
}

/* Index within a part of what the worker has of a chunk. */
RF_DEVICE uint32_t ring_index(const rf_ring *r, uint32_t chunk, uint32_t u)
{
    return ((chunk * r->lanes + r->lane) * r->rounds + u) * r->workers + r->worker;
}

RF_DEVICE uint32_t ring_has(const rf_ring *r, uint32_t part, uint32_t u, uint32_t i)
{
    return u < r->rounds && i < r->part && part * r->part + i < r->t.packs;
}

/* The same in rank q's region. Workers next to each other have packs next to each other. */
RF_DEVICE unsigned char *ring_at(const rf_ring *r, uint32_t q, uint32_t chunk, uint32_t part,
                                 uint32_t u)
{
    return r->t.p->peer[q] + RF_RING_AT(r->t.p->slot_bytes) + RF_RING_FLAGS_BYTES +
           r->turn.slot * ring_half_bytes(r->t.p) +
           (uint64_t)(part * r->span + ring_index(r, chunk % RF_RING_WINDOW, u)) * 16;
}

RF_DEVICE uint64_t ring_flag(const rf_ring *r, uint32_t turns)
{
    return (r->turn.epoch << RF_RING_TURN_BITS) + turns;
}

/* Is turn k announced? */
RF_DEVICE uint32_t ring_speaks(const rf_ring *r, uint32_t k)
{
    return k < r->chunks || (r->parts > 1 && k > r->lag && k <= r->chunks + r->lag);
}

/* A chunk of the tensor, as far as peers need it. */
RF_DEVICE void ring_load(const rf_ring *r, uint32_t chunk, rf_pack16 (*v)[RF_MAX_WORLD])
{
#pragma unroll
    for (uint32_t u = 0; u < r->unroll; u++) {
        uint32_t i = ring_index(r, chunk, u);
#pragma unroll
        for (uint32_t o = 0; o < r->parts; o++) {
            if ((r->parts == 1 || o != r->rank) && ring_has(r, o, u, i)) {
                v[u][o] = tensor_load(&r->t, o * r->part + i);
            }
        }
    }
}

RF_DEVICE void ring_store(const rf_ring *r, uint32_t chunk, rf_pack16 (*v)[RF_MAX_WORLD])
{
#pragma unroll
    for (uint32_t u = 0; u < r->unroll; u++) {
        uint32_t i = ring_index(r, chunk, u);
#pragma unroll
        for (uint32_t o = 0; o < r->parts; o++) {
            if ((r->parts == 1 || o != r->rank) && ring_has(r, o, u, i)) {
                store_sys(ring_at(r, r->rank, chunk, o, u), v[u][o]);
            }
        }
    }
}

RF_DEVICE void ring_send(const rf_ring *r, uint32_t chunk)
{
    rf_pack16 v[RF_RING_MAX_UNROLL][RF_MAX_WORLD];
    ring_load(r, chunk, v);
    ring_store(r, chunk, v);
}

/* The peers' pieces that this rank sums, and its own. */
RF_DEVICE void ring_collect(const rf_ring *r, uint32_t chunk, rf_pack16 (*v)[RF_MAX_WORLD],
                            rf_pack16 *own)
{
    uint32_t part = r->parts == 1 ? 0 : r->rank;
#pragma unroll
    for (uint32_t u = 0; u < r->unroll; u++) {
        uint32_t i = ring_index(r, chunk, u);
        if (ring_has(r, part, u, i)) {
#pragma unroll
            for (uint32_t q = 0; q < r->world; q++) {
                if (q != r->rank) {
                    v[u][q] = load_sys(ring_at(r, q, chunk, part, u));
                }
            }
            own[u] = tensor_load(&r->t, part * r->part + i);
        }
    }
}

RF_DEVICE void ring_reduce(const rf_ring *r, uint32_t chunk, rf_pack16 (*v)[RF_MAX_WORLD],
                           const rf_pack16 *own)
{
    uint32_t part = r->parts == 1 ? 0 : r->rank;
#pragma unroll
    for (uint32_t u = 0; u < r->unroll; u++) {
        uint32_t i = ring_index(r, chunk, u);
        if (ring_has(r, part, u, i)) {
            rf_pack16 sum = sum_of(r->world, r->rank, own[u], v[u]);
            if (r->parts > 1) {
                store_sys(ring_at(r, r->rank, chunk, part, u), sum);
            }
            tensor_store(&r->t, part * r->part + i, sum);
        }
    }
}

RF_DEVICE void ring_gather(const rf_ring *r, uint32_t chunk)
{
    rf_pack16 v[RF_RING_MAX_UNROLL][RF_MAX_WORLD];
#pragma unroll
    for (uint32_t u = 0; u < r->unroll; u++) {
        uint32_t i = ring_index(r, chunk, u);
#pragma unroll
        for (uint32_t o = 0; o < r->world; o++) {
            if (o != r->rank && ring_has(r, o, u, i)) {
                v[u][o] = load_sys(ring_at(r, o, chunk, o, u));
            }
        }
    }
#pragma unroll
    for (uint32_t u = 0; u < r->unroll; u++) {
        uint32_t i = ring_index(r, chunk, u);
#pragma unroll
        for (uint32_t o = 0; o < r->world; o++) {
            if (o != r->rank && ring_has(r, o, u, i)) {
                tensor_store(&r->t, o * r->part + i, v[u][o]);
            }
        }
    }
}

/* Each thread of the watcher's warp looks after one peer. Returns 0 when the call has failed. */
RF_DEVICE uint32_t ring_watch(const rf_ring *r, uint32_t q, uint32_t k, uint64_t *since)
{
    uint32_t polls = 0;
    while (load_u64_sys(flag_at(r->t.p, r->rank, q, r->lane)) < ring_flag(r, k + 1)) {
        if (++polls % RF_CHECK_EVERY == 0) {
            *since = look_up(r->t.p, r->rank, r->world, q, RF_STEP_ARRIVE, r->turn.epoch, *since);
            if (*since == RF_GIVE_UP) {
                return 0;
            }
        }
    }
    fence_acquire_sys();
    return 1;
}

RF_DEVICE void ring(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                    uint32_t unroll, uint32_t dependent, uint32_t parts)
{
    rf_ring r;
    uint64_t since = 0;
    rf_control *line = p->control + RF_CONTROL_RING;
    uint32_t thread = thread_index(), peer = thread - RF_RING_WATCHER;
    uint32_t works = thread >= RF_RING_SERVANTS, announces = thread == 0;
    uint32_t watches = thread >= RF_RING_WATCHER && peer < world && peer != rank;
    r.t = tensor_of(p, 16);
    r.world = world, r.rank = rank, r.unroll = unroll, r.parts = parts;
    r.workers = threads - RF_RING_SERVANTS, r.worker = thread - RF_RING_SERVANTS;
    r.lane = block_index();
    ring_divide(&r);
    rf_pack16 control = begin(line, dependent);
    rf_pack16 first[RF_RING_MAX_UNROLL][RF_MAX_WORLD];
    if (works && r.chunks) {
        ring_load(&r, 0, first);
    }
    r.turn = enter(p, rank, world, line, control);
    if (!r.turn.ok) {
        return;
    }
    if (works && r.chunks) {
        ring_store(&r, 0, first);
    }
    arrive(&r.turn, threads, dependent); /* barrier 0 */
    if (r.chunks == 0) {
        return;
    }
    uint32_t last = r.chunks + (parts == 1 ? r.lag - 1 : 2 * r.lag);
    for (uint32_t k = 0; k <= last; k++) {
        uint32_t failed = 0;
        if (watches && k >= r.lag && ring_speaks(&r, k - r.lag)) {
            failed = !ring_watch(&r, peer, k - r.lag, &since);
        }
        if (k > 0 && block_any(failed)) {
            return;
        }
        if (announces && ring_speaks(&r, k)) {
            fence_sys();
            flag_raise(p, world, rank, r.lane, ring_flag(&r, k + 1));
        }
        if (works) {
            rf_pack16 v[RF_RING_MAX_UNROLL][RF_MAX_WORLD], own[RF_RING_MAX_UNROLL];
            uint32_t reduces = k >= r.lag && k - r.lag < r.chunks;
            if (reduces) {
                ring_collect(&r, k - r.lag, v, own);
            }
            if (k + 1 < r.chunks) { /* while those are on their way */
                ring_send(&r, k + 1);
            }
            if (reduces) {
                ring_reduce(&r, k - r.lag, v, own);
            }
            if (parts > 1 && k > 2 * r.lag) {
                ring_gather(&r, k - 2 * r.lag - 1);
            }
        }
    }
}

RF_DEVICE void ring_os(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                       uint32_t unroll, uint32_t dependent)
{
    ring(p, world, rank, threads, unroll, dependent, 1);
}

RF_DEVICE void ring_ts(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                       uint32_t unroll, uint32_t dependent)
{
    ring(p, world, rank, threads, unroll, dependent, world);
}

#endif
