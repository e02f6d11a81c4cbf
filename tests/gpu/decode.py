#!/usr/bin/env python3
"""A decode loop as tensor-parallel engines run it: a small transformer with random weights, bf16, one CUDA graph a
batch size, two all-reduces a layer. Compares ways to reduce: time a step, and whether the tokens are the same.

    python3 tests/gpu/decode.py [--world 2] [--hidden 4096] [--batch 1,8,32] [--reduce nccl,rankfold,none]

nccl: torch.distributed's, whatever library is behind it (LD_PRELOAD works); rankfold: rankfold.py, NCCL where that was
measured faster; none: no reduction at all, for the share that it has. Rounds are interleaved; a time is the median over
rounds of the slowest rank. Prints a digest of the tokens, to be compared between runs.
"""
import argparse
import os
import statistics
import sys
import tempfile
import zlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../runtime/python"))
HEAD, VOCABULARY = 128, 8192


class Layer:
    """A rank's part of one: heads and inner columns are split, so that both outputs have to be summed."""

    def __init__(self, hidden, world, batch, length, device):
        def weights(rows, columns):
            return torch.randn(rows, columns, dtype=torch.bfloat16, device=device) * columns ** -0.5
        self.heads, inner = hidden // HEAD // world, hidden * 11 // 4 // world
        self.qkv, self.proj = weights(3 * self.heads * HEAD, hidden), weights(hidden, self.heads * HEAD)
        self.up, self.down = weights(2 * inner, hidden), weights(hidden, inner)
        self.cache = torch.zeros(2, batch, self.heads, length, HEAD, dtype=torch.bfloat16, device=device)

    def run(self, x, position, mask, reduce):
        batch = x.shape[0]
        parts = F.linear(F.rms_norm(x, x.shape[1:]), self.qkv).view(batch, 3, self.heads, 1, HEAD)
        cache = self.cache[:, :batch]
        cache.index_copy_(3, position, parts[:, 1:].transpose(0, 1))
        seen = F.scaled_dot_product_attention(parts[:, 0], cache[0], cache[1], attn_mask=mask)
        x = x + reduce(F.linear(seen.reshape(batch, -1), self.proj))
        gate, up = F.linear(F.rms_norm(x, x.shape[1:]), self.up).chunk(2, dim=1)
        return x + reduce(F.linear(F.silu(gate) * up, self.down))


class Model:
    def __init__(self, args, rank, device):
        torch.manual_seed(1)  # alike on all ranks
        self.device, self.length, hidden = device, args.steps, args.hidden
        self.words, self.head = torch.randn(2, VOCABULARY, hidden, dtype=torch.bfloat16, device=device)
        torch.manual_seed(100 + rank)
        self.layers = [Layer(hidden, args.world, max(args.batch), args.steps, device) for _ in range(args.layers)]
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.token = torch.zeros(max(args.batch), dtype=torch.long, device=device)

    def step(self, batch, reduce):
        """One token for every row: read from self.token, written there."""
        x = F.embedding(self.token[:batch], self.words)
        mask = (torch.arange(self.length, device=self.device) <= self.position).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer.run(x, self.position, mask, reduce)
        logits = F.linear(F.rms_norm(x, x.shape[1:]), self.head)
        self.token[:batch].copy_(logits.argmax(dim=1))
        self.position += 1

    def restart(self):
        for layer in self.layers:
            layer.cache.zero_()
        self.position.zero_()
        self.token.copy_(torch.arange(len(self.token), device=self.device))

    def decode(self, batch, graph):
        """Tokens of all steps, and milliseconds a step."""
        self.restart()
        tokens = torch.empty(self.length, batch, dtype=torch.long, device=self.device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        dist.barrier(group=self.host)
        events[0].record()
        for step in range(self.length):
            graph.replay()
            tokens[step].copy_(self.token[:batch])
        events[1].record()
        torch.cuda.synchronize()
        return tokens.cpu(), events[0].elapsed_time(events[1]) / self.length


class Nccl:
    def __init__(self, args, model):
        pass

    def reduce(self, x):
        dist.all_reduce(x)
        return x

    def capture(self):
        return torch.no_grad()

    def end(self):
        pass


class Nothing(Nccl):
    def reduce(self, x):
        return x


class Rankfold(Nccl):
    def __init__(self, args, model):
        import rankfold
        flags = rankfold.NO_PEER if args.no_peer else 0
        nccl = None if args.no_nccl else dist.group.WORLD
        self.comm = rankfold.Communicator(model.host, model.device, nccl=nccl, flags=flags)
        if not self.comm.setup(args.hidden, torch.bfloat16, args.batch, tune_cache=args.db, tune_seconds=args.tune):
            raise RuntimeError(self.comm.disabled)

    def reduce(self, x):
        return self.comm.all_reduce(x) if self.comm.should_use(x) else super().reduce(x)

    def capture(self):
        return self.comm.capture()

    def end(self):
        self.comm.destroy()


WAYS = {"nccl": Nccl, "rankfold": Rankfold, "none": Nothing}


def captured(model, way, batch):
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with way.capture():
        with torch.cuda.stream(side):
            for _ in range(2):
                model.step(batch, way.reduce)
        side.synchronize()
        model.restart()
        with torch.cuda.graph(graph, stream=side):
            model.step(batch, way.reduce)
    return graph


def rank_main(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.set_grad_enabled(False)
    dist.init_process_group("nccl", rank=rank, world_size=args.world, device_id=device)
    model = Model(args, rank, device)
    model.host = dist.new_group(backend="gloo")
    ways = {name: WAYS[name](args, model) for name in args.reduce}
    if rank == 0:
        print(f"{args.world} x {torch.cuda.get_device_name()}, hidden {args.hidden}, {args.layers} layers, "
              f"{2 * args.layers} all-reduces a step, {args.steps} steps, {args.rounds} rounds; ms a step, tokens")
    for batch in args.batch:
        graphs = {name: captured(model, way, batch) for name, way in ways.items()}
        times, tokens = {name: [] for name in ways}, {}
        for _ in range(args.rounds):
            for name, graph in graphs.items():
                tokens[name], milliseconds = model.decode(batch, graph)
                times[name].append(milliseconds)
        slowest = torch.tensor([times[name] for name in ways], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=model.host)
        if rank == 0:
            medians = dict(zip(ways, (statistics.median(row) for row in slowest.tolist())))
            first = next(iter(ways))
            for name in ways:
                same = "" if name in (first, "none") else \
                    f", {100 * (1 - medians[name] / medians[first]):.1f} % below {first}, tokens " \
                    f"{'the same' if torch.equal(tokens[name], tokens[first]) else 'DIFFER'}"
                digest = zlib.crc32(bytes(str(tokens[name].tolist()), "ascii"))
                print(f"batch {batch:3}  {name:9} {medians[name]:8.4f}  {digest:08x}{same}", flush=True)
        del graphs
    for way in ways.values():
        way.end()
    dist.barrier(group=model.host)
    os._exit(0)  # the ends of NCCL and its graphs are not what this is about


def main():
    def numbers(text):
        return [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (("world", int, 2), ("hidden", int, 4096), ("layers", int, 16), ("steps", int, 64),
                                ("rounds", int, 7), ("batch", numbers, [1, 8, 32]), ("tune", float, 5),
                                ("db", str, os.path.join(tempfile.gettempdir(), "rankfold-decode.db"))):
        parser.add_argument("--" + name, type=kind, default=default)
    parser.add_argument("--reduce", type=lambda text: text.split(","), default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--no-peer", action="store_true", help="ranks meet in host memory")
    parser.add_argument("--no-nccl", action="store_true", help="NCCL is not measured beside ours")
    args = parser.parse_args()
    mp.spawn(rank_main, args=(args, 20000 + os.getpid() % 20000), nprocs=args.world)


if __name__ == "__main__":
    main()
