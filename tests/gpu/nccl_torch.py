#!/usr/bin/env python3
"""PyTorch programs that know NCCL only: run with the shim and without, and compare what they print.

    torchrun --nproc-per-node 2 tests/gpu/nccl_torch.py [--seconds]

all_reduce over a grid of sizes, types, operations and groups; DistributedDataParallel; a tensor-parallel toy model in a CUDA
graph. Prints a digest of every part from rank 0, after the ranks have compared theirs. Sums are of two ranks, or of small
integers, so that every order of summation gives the same bits. --seconds: what each part took, too.
"""
import argparse
import ctypes
import os
import time
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SIZES = [1, 5, 1000, 1024, 4096, 16385, 65536, 500000, 1 << 20, 5 << 20]
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64]
OPERATIONS = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG]


def digest(tensors):
    value = 0
    for tensor in tensors:
        mine = tensor.detach().contiguous().cpu()
        value = zlib.crc32(ctypes.string_at(mine.data_ptr(), mine.nbytes), value)
    return value


def numbers(size, dtype, rank, device):
    return (torch.arange(size, device=device) * 7 + 3 * rank).remainder(5).to(dtype)


def grid(rank, device, group=None):
    """Everything that all_reduce is asked for, now and then on another stream, or without waiting."""
    results, streams = [], [torch.cuda.current_stream(), torch.cuda.Stream()]
    for i, size in enumerate(SIZES):
        for dtype in TYPES:
            for operation in OPERATIONS:
                if dtype == torch.int64 and operation == dist.ReduceOp.AVG:
                    continue
                streams[i % 2].wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(streams[i % 2]):
                    x = numbers(size, dtype, rank, device)
                    work = dist.all_reduce(x, op=operation, group=group, async_op=size % 2 == 1)
                    if work:
                        work.wait()
                torch.cuda.current_stream().wait_stream(streams[i % 2])
                results.append(x)
    return results


def groups(rank, device):
    """A second group of all, and one of each rank alone; calls of both in turn."""
    both = dist.new_group(list(range(dist.get_world_size())))
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][rank]
    results = grid(rank, device, both)
    for size in SIZES[:6]:
        x = numbers(size, torch.bfloat16, rank, device)
        dist.all_reduce(x, group=both)
        dist.all_reduce(x)
        y = numbers(size, torch.float32, 0, device)
        dist.all_reduce(y, group=alone)
        results += [x, y]
    dist.destroy_process_group(both)
    return results


def coalesced(rank, device):
    tensors = [numbers(size, torch.float32, rank, device) for size in SIZES[:6]]
    with dist._coalescing_manager(device=device):
        for x in tensors:
            dist.all_reduce(x)
    gathered = torch.empty(dist.get_world_size() * 100, device=device)
    dist.all_gather_into_tensor(gathered, numbers(100, torch.float32, rank, device))
    return tensors + [gathered]


def training(rank, device):
    """Ten steps of data-parallel training: the buckets of gradients are all-reduced."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(6)))
    model = DistributedDataParallel(model.to(device), device_ids=[device.index], bucket_cap_mb=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(2 + rank)
    data = torch.randn(10, 64, 512, device=device)
    for batch in data:
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()
    return list(model.parameters())


def tensor_parallel(rank, device):
    """Two layers split over the ranks, captured once for every batch size, replayed in turn with new inputs."""
    torch.manual_seed(3 + rank)
    up, down = (torch.randn(1024, 1024, dtype=torch.bfloat16, device=device) / 32 for _ in range(2))
    cases, results = {}, []

    def run(x):
        for _ in range(2):
            partial = torch.relu(x @ up) @ down
            dist.all_reduce(partial)
            x = x + partial
        return x

    for batch in (1, 3, 16):
        x, graph = torch.zeros(batch, 1024, dtype=torch.bfloat16, device=device), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run(x)
        side.synchronize()
        with torch.cuda.graph(graph, stream=side):
            out = run(x)
        cases[batch] = (x, out, graph)
    torch.manual_seed(4)
    for i in range(30):
        x, out, graph = cases[(1, 3, 16)[i % 3]]
        x.copy_(torch.randn(x.shape, device=device))
        graph.replay()
        results.append(out.clone())
        if i % 5 == 0:
            results.append(run(x))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", action="store_true")
    args = parser.parse_args()
    rank, start = int(os.environ["LOCAL_RANK"]), time.time()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    for part in (grid, groups, coalesced, training, tensor_parallel):
        results = part(rank, device)
        torch.cuda.synchronize()
        mine = torch.tensor([digest(results)], device=device)
        all_digests = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_digests, mine)
        if rank == 0:
            same = all(torch.equal(other, mine) for other in all_digests)
            seconds = f", {time.time() - start:.1f} s" if args.seconds else ""
            print(f"{part.__name__}: {mine.item():08x}{'' if same else ' THE RANKS DIFFER'}{seconds}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
