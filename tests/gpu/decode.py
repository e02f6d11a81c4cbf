#!/usr/bin/env python3
"""A decode loop as tensor-parallel engines run it: a small transformer with random weights, bf16, one CUDA graph a
batch size, two all-reduces a layer. Compares ways to reduce: time a step, and whether the results are the same.

    python3 tests/gpu/decode.py [--hidden 4096,8192] [--batch 1,8,32] [--reduce nccl,rankfold,none] [--no-peer]
    python3 tests/gpu/decode.py --device cpu --hidden 256 --layers 2 --steps 8    a dry run: gloo stands in for NCCL

nccl: torch.distributed's; shim: the same on a group of its own, for LD_PRELOAD=librankfold_nccl.so, which is told to
keep out of the other; rankfold: rankfold.py, NCCL where that was measured faster; none: no reduction at all. Rounds are
interleaved; a time is the median over rounds of the slowest rank; "below" is relative to the first way, so that of none
is the share that the reductions have.

Results are the tokens of all steps and the hidden state of the last one, bit by bit, of every round and every rank: a
digest is printed, to be compared between runs. Two ranks have one addition, rounded once, whoever does it: at world 2
the bits are NCCL's. From 3 ranks on NCCL may add in another order, or round more often, so that they may differ.

Weights are a rank's of --split, as in a world of so many of which two are here: by default so many that NCCL's share of
a step is about a third between peers, or through host memory (--no-peer).
"""
import argparse
import os
import statistics
import sys
import tempfile
import time
import zlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../runtime/python"))
HEAD, VOCABULARY = 128, 8192


class Layer:
    """A rank's part of one: heads and inner columns are split, so that both outputs have to be summed."""

    def __init__(self, args, device):
        def weights(rows, columns):
            return torch.randn(rows, columns, dtype=torch.bfloat16, device=device) * columns ** -0.5
        self.heads, inner = args.width // HEAD // args.split, args.width * 11 // 4 // args.split
        self.qkv, self.proj = weights(3 * self.heads * HEAD, args.width), weights(args.width, self.heads * HEAD)
        self.up, self.down = weights(2 * inner, args.width), weights(args.width, inner)
        shape = 2, max(args.batch), self.heads, args.steps, HEAD
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)

    def run(self, x, position, mask, reduce):
        batch = x.shape[0]
        parts = F.linear(F.rms_norm(x, x.shape[1:]), self.qkv).view(batch, 3, self.heads, 1, HEAD)
        keys, values = cache = self.cache[:, :batch]
        cache.index_copy_(3, position, parts[:, 1:].transpose(0, 1))
        scores = parts[:, 0] @ keys.transpose(2, 3)  # by hand: the same kernels for all batches, none looks for a plan
        seen = torch.softmax(scores * HEAD ** -0.5 + mask, dim=3) @ values
        x = x + reduce(F.linear(seen.reshape(batch, -1), self.proj))
        both = F.linear(F.rms_norm(x, x.shape[1:]), self.up)
        return x + reduce(F.linear(F.glu(both, dim=1), self.down))


class Model:
    def __init__(self, args, rank, device):
        torch.manual_seed(1)  # alike on all ranks
        self.device, self.length = device, args.steps
        self.words, self.head = torch.randn(2, VOCABULARY, args.width, dtype=torch.bfloat16, device=device)
        torch.manual_seed(100 + rank)
        self.layers = [Layer(args, device) for _ in range(args.layers)]
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.token = torch.zeros(max(args.batch), dtype=torch.long, device=device)
        self.state = torch.zeros(max(args.batch), args.width, dtype=torch.bfloat16, device=device)

    def step(self, batch, reduce):
        """One token for every row: read from self.token, written there. At most self.length of them after restart()."""
        x = F.embedding(self.token[:batch], self.words)
        ahead = torch.arange(self.length, device=self.device) > self.position
        mask = torch.zeros(self.length, dtype=x.dtype, device=self.device).masked_fill_(ahead, float("-inf"))
        for layer in self.layers:
            x = layer.run(x, self.position, mask, reduce)
        self.state[:batch].copy_(x)
        self.token[:batch].copy_(F.linear(F.rms_norm(x, x.shape[1:]), self.head).argmax(dim=1))
        self.position += 1

    def restart(self):
        for layer in self.layers:
            layer.cache.zero_()
        self.position.zero_()
        self.token.copy_(torch.arange(len(self.token), device=self.device))

    def decode(self, machine, batch, replay):
        """The digest of all tokens and the last state, and milliseconds a step."""
        self.restart()
        tokens = torch.empty(self.length, batch, dtype=torch.long, device=self.device)
        machine.begin()
        for step in range(self.length):
            replay()
            tokens[step].copy_(self.token[:batch])
        milliseconds = machine.end() / self.length
        state = self.state[:batch].view(torch.int16)
        if not torch.isfinite(self.state[:batch]).all():
            raise RuntimeError("the hidden state is not finite: nothing can be compared")
        return zlib.crc32(bytes(str((tokens.tolist(), state.tolist())), "ascii")), milliseconds


class Gpu:
    """Where the model runs, and how steps become graphs and take time there."""
    backend = "nccl"

    def __init__(self, rank):
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.name = torch.cuda.get_device_name()
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def begin(self):
        torch.cuda.synchronize()
        dist.barrier(group=self.host)
        self.events[0].record()

    def end(self):
        self.events[1].record()
        torch.cuda.synchronize()
        return self.events[0].elapsed_time(self.events[1])

    def captured(self, model, way, batch):
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with way.capture():
            model.restart()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    model.step(batch, way.reduce)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=side):
                model.step(batch, way.reduce)
        return graph.replay


class Cpu:
    backend, name, device = "gloo", "cpu", torch.device("cpu")

    def __init__(self, rank):
        torch.set_num_threads(1)

    def begin(self):
        dist.barrier(group=self.host)
        self.start = time.perf_counter()

    def end(self):
        return 1000 * (time.perf_counter() - self.start)

    def captured(self, model, way, batch):
        return lambda: model.step(batch, way.reduce)


class Nccl:
    group = None

    def __init__(self, args, machine):
        pass

    def reduce(self, x):
        dist.all_reduce(x, group=self.group)
        return x

    def capture(self):
        return torch.no_grad()

    def end(self):
        pass


class Shim(Nccl):
    def __init__(self, args, machine):
        self.group = dist.new_group(backend=machine.backend)

    def end(self):
        dist.destroy_process_group(self.group)  # now the shim says how many sums were ours


class Nothing(Nccl):
    def reduce(self, x):
        return x


class Rankfold(Nccl):
    def __init__(self, args, machine):
        import rankfold
        flags = rankfold.NO_PEER if args.no_peer else 0
        nccl = None if args.no_nccl or args.device == "cpu" else dist.group.WORLD
        self.comm = rankfold.Communicator(machine.host, machine.device, nccl=nccl, flags=flags)
        if not self.comm.setup(args.width, torch.bfloat16, args.batch, tune_cache=args.db, tune_seconds=args.tune):
            raise RuntimeError(self.comm.disabled)

    def reduce(self, x):
        return self.comm.all_reduce(x) if self.comm.should_use(x) else super().reduce(x)

    def capture(self):
        return self.comm.capture()

    def end(self):
        self.comm.destroy()


WAYS = {"nccl": Nccl, "shim": Shim, "rankfold": Rankfold, "none": Nothing}


def measure(machine, model, ways, batch, rounds):
    """For every way: milliseconds a step, and all digests that came out, of all rounds and ranks."""
    replays = {name: machine.captured(model, way, batch) for name, way in ways.items()}
    mine = torch.tensor([[model.decode(machine, batch, replay) for replay in replays.values()] for _ in range(rounds)],
                        dtype=torch.float64)
    ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, mine, group=machine.host)
    digests, times = torch.stack(ranks).unbind(dim=3)  # of rank, round and way
    slowest = times.amax(dim=0).t().tolist()
    return {name: (statistics.median(slowest[i]), {int(digest) for digest in digests[:, :, i].flatten().tolist()})
            for i, name in enumerate(ways)}


def heading(names):
    return f"{'hidden':>6} {'batch':>5} {names[0]:>9}" + "".join(f" {name:>9}   below" for name in names[1:])


def row(width, batch, measured):
    """A line of the table, and the ways whose results are not the first one's, everywhere and always."""
    first, (reference, expected) = next(iter(measured.items()))
    wrong = [name for name, (_, digests) in measured.items()
             if name != "none" and (digests != expected or len(digests) != 1)]
    others = "".join(f" {milliseconds:9.4f} {100 * (1 - milliseconds / reference):5.1f} %"
                     for milliseconds, _ in list(measured.values())[1:])
    results = f"{' and '.join(wrong)} DIFFER" if wrong else f"{min(expected):08x}, all the same"
    return f"{width:6} {batch:5} {reference:9.4f}{others}  {results}", wrong


def rank_main(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    machine = {"cuda": Gpu, "cpu": Cpu}[args.device](rank)
    torch.set_grad_enabled(False)
    device_id = machine.device if args.device == "cuda" else None
    os.environ["RANKFOLD_DISABLE"] = "1"  # this group is NCCL's under the shim, too
    dist.init_process_group(machine.backend, rank=rank, world_size=args.world, device_id=device_id)
    dist.barrier()  # it is there by now, also where it is made without waiting
    del os.environ["RANKFOLD_DISABLE"]
    machine.host = dist.new_group(backend="gloo")
    failed = False
    for width in args.hidden:
        args.width = width
        args.split = args.given_split or max(args.world, width // (2048 if args.no_peer else 512))
        model = Model(args, rank, machine.device)
        ways = {name: WAYS[name](args, machine) for name in args.reduce}
        if rank == 0:
            print(f"{args.world} x {machine.name}{', no peer access' if args.no_peer else ''}, {args.layers} layers, "
                  f"weights of 1 in {args.split} ranks, {2 * args.layers} all-reduces a step, {args.steps} steps, "
                  f"{args.rounds} rounds: ms a step, results\n{heading(args.reduce)}", flush=True)
        for batch in args.batch:
            measured = measure(machine, model, ways, batch, args.rounds)
            line, wrong = row(width, batch, measured)
            failed |= args.world == 2 and bool(wrong)
            if rank == 0:
                print(line, flush=True)
        for way in ways.values():
            way.end()
        del model
    dist.barrier(group=machine.host)
    os._exit(failed)  # the ends of NCCL and its graphs are not what this is about


def main():
    def numbers(text):
        return [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (("world", int, 2), ("hidden", numbers, [4096]), ("layers", int, 16), ("steps", int, 64),
                                ("rounds", int, 7), ("batch", numbers, [1, 8, 32]), ("tune", float, 5),
                                ("db", str, os.path.join(tempfile.gettempdir(), "rankfold-decode.db"))):
        parser.add_argument("--" + name, type=kind, default=default)
    parser.add_argument("--reduce", type=lambda text: text.split(","), default=["nccl", "rankfold", "none"],
                        help=", ".join(WAYS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--split", dest="given_split", type=int, help="a rank has one part of so many of the weights")
    parser.add_argument("--no-peer", action="store_true", help="ranks meet in host memory, NCCL's too")
    parser.add_argument("--no-nccl", action="store_true", help="NCCL is not measured beside ours")
    args = parser.parse_args()
    if args.no_peer:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    mp.spawn(rank_main, args=(args, 20000 + os.getpid() % 20000), nprocs=args.world)


if __name__ == "__main__":
    main()
