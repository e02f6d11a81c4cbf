#!/usr/bin/env python3
"""Rankfold against NCCL and torch's symmetric memory, in one run on the GPUs of this machine.

    python3 tests/bench/gpu_peers.py LIBRARY [--world N] [--csv FILE] [--between]

LIBRARY is a shared library of a pack, librankfold.a and gpu_shim.c. Every candidate's calls are captured
in a graph; rounds are interleaved; a time is the median over rounds of the maximum over ranks. "a2" is
"ours" once more: what differs between the two is noise. Sums are checked before anything is timed and
after the last round. --between: a small matrix-vector product before every call, as in a decode step;
"none" is the products alone.
"""
import argparse
import ctypes
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [2048 << i for i in range(0, 12)] + [16 << 20, 64 << 20]
NCCL = {
    "LL": {"NCCL_PROTO": "LL"},
    "LL128": {"NCCL_PROTO": "LL128"},
    "Simple": {"NCCL_PROTO": "Simple"},
    "tree": {"NCCL_ALGO": "Tree"},
}


def threads_for(size):
    return 128 if size <= 64 << 10 else 256 if size <= 256 << 10 else 512 if size <= 1 << 20 else 1024


def load(path):
    lib = ctypes.CDLL(path)
    p, u64 = ctypes.c_void_p, ctypes.c_uint64
    lib.shim_error.restype = ctypes.c_char_p
    lib.shim_open.restype = p
    lib.shim_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, u64]
    lib.shim_use.argtypes = [p, u64, ctypes.c_char_p, ctypes.c_uint32]
    lib.shim_call.argtypes = [p, p, p, u64, p]
    for name in ("shim_rebind", "shim_health", "shim_close"):
        getattr(lib, name).argtypes = [p]
    return lib


class Ours:
    """Calls through the public interface, with the class's default plan or a named variant."""

    def __init__(self, lib, name, rank, world, variant):
        self.lib, self.variant, self.world = lib, variant, world
        self.comm = lib.shim_open(name.encode(), rank, world, rank, SIZES[-1])
        if not self.comm:
            raise RuntimeError(lib.shim_error().decode())

    def prepare(self, count):
        name = None
        if self.variant:
            name = self.variant.format(w=self.world, t=threads_for(2 * count)).encode()
        if self.lib.shim_use(self.comm, count, name, 0):
            raise RuntimeError(self.lib.shim_error().decode())
        self.lib.shim_rebind(self.comm)

    def hand_over(self):
        self.lib.shim_rebind(self.comm)

    def call(self, x, out):
        stream = torch.cuda.current_stream().cuda_stream
        if self.lib.shim_call(self.comm, x.data_ptr(), out.data_ptr(), x.numel(), stream):
            raise RuntimeError(self.lib.shim_error().decode())
        return out


class Peer:
    def prepare(self, count):
        pass

    def hand_over(self):
        pass


class Nothing(Peer):
    def call(self, x, out):
        return None


class Nccl(Peer):
    """A group of its own, made while the environment asks for one protocol or algorithm."""

    def __init__(self, device, forced):
        os.environ.update(forced)
        self.group = dist.new_group(backend="nccl")
        dist.all_reduce(torch.zeros(8, device=device), group=self.group)
        torch.cuda.synchronize()
        for name in forced:
            del os.environ[name]

    def call(self, x, out):
        dist.all_reduce(x, group=self.group)
        return x


class Symmetric(Peer):
    def __init__(self, op, device):
        import torch.distributed._symmetric_memory as symmetric
        self.symmetric, self.op, self.device = symmetric, op, device
        self.buffer = symmetric.empty(SIZES[-1] // 2, dtype=torch.bfloat16, device=device)
        symmetric.rendezvous(self.buffer, dist.group.WORLD.group_name)

    def prepare(self, count):
        self.x = self.buffer[:count]

    def call(self, x, out):
        return getattr(torch.ops.symm_mem, self.op)(self.x, "sum", dist.group.WORLD.group_name)


def capture(candidate, x, out, stream, calls, product):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        candidate.call(x, out)
    torch.cuda.synchronize()
    candidate.hand_over()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        for _ in range(calls):
            if product:
                torch.mv(product[0], product[1], out=product[2])
            candidate.call(x, out)
    candidate.hand_over()
    return graph


def check(name, candidate, rank, world, count, stream, device):
    if isinstance(candidate, Nothing):
        return
    generator = torch.Generator().manual_seed(count)
    parts = [torch.randint(-64, 64, (count,), generator=generator).to(torch.bfloat16) for _ in range(world)]
    want = torch.stack(parts).float().sum(0).to(torch.bfloat16)
    x, out = parts[rank].to(device), torch.full((count,), 7.0, dtype=torch.bfloat16, device=device)
    if isinstance(candidate, Symmetric):
        candidate.x.copy_(x)
    torch.cuda.synchronize()
    dist.barrier(group=HOST)
    with torch.cuda.stream(stream):
        got = candidate.call(x, out)
    torch.cuda.synchronize()
    if not torch.equal(got.cpu(), want):
        print(f"{name}: WRONG sum of {count} elements on rank {rank}", flush=True)


def rank_main(rank, world, args, port):
    global HOST
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", device_id=device)
    HOST = dist.new_group(backend="gloo")
    stream = torch.cuda.Stream()
    lib = load(args.library)
    base = "ar_w{w}_bf16_h0_os_peer_nan_sm90_u1_t{t}_own_"
    candidates = {
        "ours": Ours(lib, f"bench-{port}-a", rank, world, None),
        "a2": Ours(lib, f"bench-{port}-b", rank, world, None),
        "dep": Ours(lib, f"bench-{port}-c", rank, world, base + "dep"),
        "nccl": Nccl(device, {}),
    }
    if args.between:
        candidates["none"] = Nothing()
    for name, forced in NCCL.items():
        candidates[name] = Nccl(device, forced)
    for op in ("one_shot_all_reduce", "two_shot_all_reduce_"):
        try:
            candidates[op.split("_all")[0]] = Symmetric(op, device)
        except Exception as error:  # another torch: said, and left out
            if rank == 0:
                print(f"symmetric memory, {op}: {error}", flush=True)
    if rank == 0:
        print(f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {world} x "
              f"{torch.cuda.get_device_name()}, {args.rounds} rounds, "
              f"{'between matrix-vector products' if args.between else 'chains'}; us a call")
        print("   bytes " + "".join(f"{name:>10}" for name in candidates), flush=True)
    product = None
    if args.between:
        shapes = ((2048, 2048), 2048, 2048)
        product = [torch.rand(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
        with torch.cuda.stream(stream):  # its library sets itself up outside of captures
            torch.mv(product[0], product[1], out=product[2])
    rows = []
    for size in SIZES if not args.between else SIZES[:12]:
        count = size // 2
        calls = 100 if size <= 256 << 10 else 40 if size <= 4 << 20 else 10
        x = torch.zeros(count, dtype=torch.bfloat16, device=device)
        out = torch.empty_like(x)
        graphs = {}
        for name, candidate in candidates.items():
            candidate.prepare(count)
            check(name, candidate, rank, world, count, stream, device)
            dist.barrier(group=HOST)
            graphs[name] = capture(candidate, x, out, stream, calls, product)
        times = {name: [] for name in candidates}
        for _ in range(args.rounds):
            for name, graph in graphs.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                dist.barrier(group=HOST)
                with torch.cuda.stream(stream):
                    graph.replay()
                    start.record()
                    graph.replay()
                    end.record()
                torch.cuda.synchronize()
                times[name].append(start.elapsed_time(end) * 1e3 / calls)
        for name, candidate in candidates.items():
            check(name, candidate, rank, world, count, stream, device)
        result = torch.tensor([times[name] for name in candidates], dtype=torch.float64)
        dist.all_reduce(result, op=dist.ReduceOp.MAX, group=HOST)
        if rank == 0:
            medians = [statistics.median(row) for row in result.tolist()]
            print(f"{size:8} " + "".join(f"{value:10.2f}" for value in medians), flush=True)
            rows += [f"{size},{name},{','.join(f'{t:.4f}' for t in row)}"
                     for name, row in zip(candidates, result.tolist())]
        del graphs
    for candidate in candidates.values():
        if isinstance(candidate, Ours):
            if candidate.lib.shim_health(candidate.comm) or candidate.lib.shim_close(candidate.comm):
                print("unhealthy at the end", flush=True)
    if rank == 0 and args.csv:
        with open(args.csv, "w", encoding="ascii") as file:
            file.write("\n".join(rows) + "\n")
    dist.barrier(group=HOST)
    os._exit(0)  # NCCL's and the graphs' own ends are not what this is about


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--csv")
    parser.add_argument("--between", action="store_true")
    args = parser.parse_args()
    mp.spawn(rank_main, args=(args.world, args, 20000 + os.getpid() % 20000), nprocs=args.world)


if __name__ == "__main__":
    sys.exit(main())
