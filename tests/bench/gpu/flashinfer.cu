/* FlashInfer's all-reduces behind plain C, for peers.py: its PCIe-IPC workspace and its vLLM-style
 * custom all-reduce, straight from the headers of the flashinfer-python wheel. Launch rules are
 * those of its own bindings. Every function returns a CUDA error code, 0 = done, unless it says
 * otherwise. */
#include <cstring>
#include <stdexcept>

#include "flashinfer/comm/pcie_ipc_ce_ring.cuh"
#include "flashinfer/comm/vllm_custom_all_reduce.cuh"

namespace pcie = flashinfer::comm::pcie_ipc;
using bf16 = nv_bfloat16;

enum { MAX_BLOCKS = 128, NOT_LAUNCHABLE = 1, RANK_DATA = 8 << 20 };

/* ---- memory that peers map ---- */

extern "C" int fi_alloc(uint64_t bytes, void **out, char handle[64])
{
    cudaError_t e = cudaMalloc(out, bytes);
    if (e == cudaSuccess)
        e = cudaMemset(*out, 0, bytes);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize(); /* before a peer writes there */
    if (e == cudaSuccess)
        e = cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, *out);
    return e;
}

extern "C" int fi_open(const char handle[64], void **out)
{
    cudaIpcMemHandle_t h;
    memcpy(&h, handle, sizeof h);
    return cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess);
}

extern "C" int fi_unmap(void *pointer)
{
    return cudaIpcCloseMemHandle(pointer);
}

extern "C" int fi_free(void *pointer)
{
    return cudaFree(pointer);
}

/* ---- PCIe-IPC workspace ---- */

struct Workspace {
    pcie::PeerViews views;
    pcie::WorkspaceLayout layout;
    pcie::CeResources engine;
    int rank, world;
    int64_t most;
};

extern "C" int64_t fi_pcie_bytes(int world, int64_t most)
{
    return pcie::workspace_size(world, most, sizeof(bf16), MAX_BLOCKS);
}

/* slabs[r]: rank r's zeroed allocation. NULL: the streams of the copy-engine ring are refused. */
extern "C" void *fi_pcie_init(const int64_t *slabs, int rank, int world, int64_t most)
{
    Workspace *w = new Workspace();
    w->layout = pcie::compute_workspace_layout(world, most, sizeof(bf16), MAX_BLOCKS);
    w->views = pcie::make_peer_views(slabs, world, rank, w->layout);
    w->rank = rank, w->world = world, w->most = most;
    int bad = cudaStreamCreateWithFlags(&w->engine.copy_stream, cudaStreamNonBlocking);
    bad |= cudaStreamCreateWithFlags(&w->engine.flag_stream, cudaStreamNonBlocking);
    cudaEvent_t *const events[] = {&w->engine.input_ready, &w->engine.copy_done,
                                   &w->engine.flag_done};
    for (cudaEvent_t *event : events)
        bad |= cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    for (cudaEvent_t &event : w->engine.add_done)
        bad |= cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    for (cudaEvent_t &event : w->engine.copied)
        bad |= cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    return bad ? nullptr : w;
}

extern "C" void fi_pcie_free(void *workspace)
{
    Workspace *w = (Workspace *)workspace;
    for (cudaEvent_t event : w->engine.copied)
        cudaEventDestroy(event);
    for (cudaEvent_t event : w->engine.add_done)
        cudaEventDestroy(event);
    cudaEventDestroy(w->engine.flag_done);
    cudaEventDestroy(w->engine.copy_done);
    cudaEventDestroy(w->engine.input_ready);
    cudaStreamDestroy(w->engine.flag_stream);
    cudaStreamDestroy(w->engine.copy_stream);
    delete w;
}

/* May this be launched? Its waits have no end, so what its bindings refuse never gets that far. */
extern "C" int fi_pcie_launchable(int world, int64_t count, int blocks, int threads, int variant)
{
    pcie::Variant v = (pcie::Variant)variant;
    if ((world != 2 && world != 4) || count % 8 || count < 8 * world)
        return 0;
    if (v == pcie::Variant::kCopyEngineRing)
        return world == 4 && threads == pcie::kCeAddThreads && blocks <= pcie::kCeMaxPieces &&
               count % (world * 8) == 0 && count / world % (blocks * 8) == 0;
    int known = v == pcie::Variant::kUnstaged || v == pcie::Variant::kStaged ||
                (v == pcie::Variant::kStagedRing && world == 4);
    return known && blocks >= 1 && blocks <= MAX_BLOCKS && threads >= world && threads <= 1024;
}

extern "C" int fi_pcie_call(void *workspace, const void *in, void *out, int64_t count, int blocks,
                            int threads, int variant, void *stream)
{
    Workspace *w = (Workspace *)workspace;
    if (count > w->most || !fi_pcie_launchable(w->world, count, blocks, threads, variant))
        return NOT_LAUNCHABLE;
    if ((pcie::Variant)variant == pcie::Variant::kCopyEngineRing)
        return pcie::ce_ring_all_reduce_flat<bf16>((const bf16 *)in, (bf16 *)out, count, w->views,
                                                   w->rank, w->world, w->layout, w->engine, blocks,
                                                   threads, (cudaStream_t)stream);
    return pcie::all_reduce<bf16>((const bf16 *)in, (bf16 *)out, count, w->views, w->rank, w->world,
                                  MAX_BLOCKS, w->most, blocks, threads, (pcie::Variant)variant,
                                  false, (cudaStream_t)stream);
}

/* ---- vLLM-style custom all-reduce ---- */

struct Custom {
    vllm::CustomAllreduce *reduce;
    vllm::RankData inputs; /* the buffer that every call reads, on all ranks */
};

extern "C" uint64_t fi_vllm_signal_bytes(void)
{
    return sizeof(vllm::Signal);
}

/* signals[r]: rank r's zeroed signals, with room for one tensor behind them. inputs[r]: rank r's
 * input buffer. NULL: out of memory. */
extern "C" void *fi_vllm_init(const int64_t *signals, const int64_t *inputs, int rank, int world)
{
    void *rank_data;
    if (cudaMalloc(&rank_data, RANK_DATA) != cudaSuccess)
        return nullptr;
    vllm::Signal *all[8];
    void *pointers[8];
    Custom *c = new Custom();
    for (int r = 0; r < world; r++) {
        all[r] = (vllm::Signal *)signals[r];
        c->inputs.ptrs[r] = pointers[r] = (void *)inputs[r];
    }
    c->reduce = new vllm::CustomAllreduce(all, rank_data, RANK_DATA, rank, world, true);
    try {
        c->reduce->register_buffer(pointers);
    } catch (const std::exception &) {
        return nullptr;
    }
    return c;
}

/* Reads this rank's input buffer. */
extern "C" int fi_vllm_call(void *custom, void *out, int64_t count, int blocks, int threads,
                            void *stream)
{
    Custom *c = (Custom *)custom;
    try {
        c->reduce->allreduce<bf16>((cudaStream_t)stream, (bf16 *)c->inputs.ptrs[c->reduce->rank_],
                                   (bf16 *)out, (int)count, blocks, threads);
    } catch (const std::exception &) {
        return NOT_LAUNCHABLE;
    }
    return cudaGetLastError();
}

/* After a capture, before its first replay: tells the captured calls where the inputs are. */
extern "C" int fi_vllm_captured(void *custom)
{
    Custom *c = (Custom *)custom;
    size_t n = c->reduce->graph_unreg_buffers_.size();
    std::vector<vllm::RankData> data(n, c->inputs);
    try {
        c->reduce->check_rank_data_capacity(n);
    } catch (const std::exception &) {
        return NOT_LAUNCHABLE;
    }
    cudaError_t e = cudaMemcpy(c->reduce->d_rank_data_base_, data.data(), n * sizeof data[0],
                               cudaMemcpyHostToDevice);
    c->reduce->d_rank_data_base_ += n;
    c->reduce->graph_unreg_buffers_.clear();
    return e;
}
