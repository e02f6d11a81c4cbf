#!/usr/bin/env python3
"""rankfold.py on the GPUs of this machine, through torch: sums, CUDA graphs, ends, set-up time, time of a call.

    RANKFOLD_LIBRARY=.../librankfold.so.0 python3 tests/gpu/communicator.py [--world N] [--db FILE] [--tune SECONDS]

Every sum is compared bit for bit with one made by torch: fp32, in rank order, rounded once. The last line says
"all well", or how much failed, and so does the exit code.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, folder) for folder in (".", "../../runtime/python")]
import rankfold  # noqa: E402

HIDDEN, SIZES = 8192, [1, 2, 4, 8, 16, 32, 64]


class Run:
    """One rank's view: its groups, its device, and what failed."""

    def __init__(self, rank, args, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        self.rank, self.world, self.args, self.failures = rank, args.world, args, 0
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", rank=rank, world_size=args.world, device_id=self.device)
        self.gpus, self.host = dist.group.WORLD, dist.new_group(backend="gloo")

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def expect(self, what, right):
        if not right:
            self.failures += 1
            print(f"FAILED on rank {self.rank}: {what}", flush=True)

    def communicator(self, nccl):
        flags = rankfold.NO_PEER if self.args.no_peer else 0
        return rankfold.Communicator(self.host, self.device, nccl=nccl, flags=flags)

    def tensor(self, rank, seed, shape, dtype):
        generator = torch.Generator(self.device).manual_seed(1000 * seed + rank)
        return torch.randn(shape, generator=generator, device=self.device).to(dtype)

    def case(self, seed, shape, dtype):
        """This rank's tensor, and what the sum has to be."""
        total = self.tensor(0, seed, shape, dtype).float()
        for rank in range(1, self.world):
            total += self.tensor(rank, seed, shape, dtype).float()
        return self.tensor(self.rank, seed, shape, dtype), total.to(dtype)


def sums(run, comm, dtype):
    for rows in (1, 2, 3, 7, 8, 31, 64):
        x, total = run.case(rows, (rows, HIDDEN), dtype)
        run.expect(f"should_use {rows} x {HIDDEN} {dtype}", comm.should_use(x))
        run.expect(f"{rows} x {HIDDEN} {dtype}", torch.equal(comm.all_reduce(x), total))
        y = torch.full_like(x, 7)
        run.expect(f"{rows} x {HIDDEN} {dtype} into out", comm.all_reduce(x, y) is y and torch.equal(y, total))
        comm.all_reduce(x, x)
        run.expect(f"{rows} x {HIDDEN} {dtype} in place", torch.equal(x, total))
    for count in (1, 3, 1001, 70001):  # flat, and not aligned to 16 bytes
        x, total = run.case(count, (count + 1,), dtype)
        run.expect(f"{count} {dtype} unaligned", torch.equal(comm.all_reduce(x[1:]), total[1:]))


def refusals(run, comm, dtype):
    x = torch.zeros(64, HIDDEN, dtype=dtype, device=run.device)
    other = torch.float32 if dtype != torch.float32 else torch.float16
    for what, tensor in {
            "too large": torch.zeros(65, HIDDEN, dtype=dtype, device=run.device), "not contiguous": x.t(),
            "another dtype": x.to(other), "on the cpu": x.cpu(),
            "another GPU's": x.to(f"cuda:{(run.rank + 1) % run.world}")}.items():
        run.expect(f"should_use refuses: {what}", not comm.should_use(tensor))
        try:
            comm.all_reduce(tensor)
            run.expect(f"all_reduce refuses: {what}", False)
        except ValueError:
            pass


def graphs(run, comm, dtype):
    """As engines do: one context for all sizes, largest first, on a side stream, a warm-up run before each capture."""
    inputs = {rows: torch.zeros(rows, HIDDEN, dtype=dtype, device=run.device) for rows in SIZES}
    captured, outputs, side = {}, {}, torch.cuda.Stream()
    comm.all_reduce(inputs[1])  # eager, on the main stream
    with comm.capture():
        for rows in reversed(SIZES):
            with torch.cuda.stream(side):
                comm.all_reduce(inputs[rows])
            side.synchronize()
            captured[rows] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured[rows], stream=side):
                for _ in range(3):  # an odd number of calls
                    outputs[rows] = comm.all_reduce(inputs[rows])
    for turn in range(20):
        for rows in SIZES:
            x, total = run.case(100 * turn + rows, (rows, HIDDEN), dtype)
            inputs[rows].copy_(x)
            captured[rows].replay()
            run.expect(f"replay {turn} of {rows} rows {dtype}", torch.equal(outputs[rows], total))
            if turn % 3 == 0:
                run.expect(f"eager between replays {dtype}", torch.equal(comm.all_reduce(x), total))
    try:
        with comm.capture(), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
            comm.all_reduce(inputs[1])
            raise KeyError("of the body")
    except KeyError:
        pass
    x, total = run.case(5, (4, HIDDEN), dtype)
    run.expect("eager after a body that raised", torch.equal(comm.all_reduce(x), total))
    captured[16].replay()
    torch.cuda.synchronize()
    run.expect(f"health: {comm.health()}", comm.health() is None)
    return captured


def dispatcher(run, comm, dtype):
    """Ours where it is worth it, else NCCL."""
    def all_reduce(x):
        if comm.should_use(x):
            return comm.all_reduce(x)
        dist.all_reduce(x, group=run.gpus)
        return x
    for rows in (1, 64, 65, 512):
        x, total = run.case(rows, (rows, HIDDEN), dtype)
        near = torch.allclose(all_reduce(x).float(), total.float(), rtol=0.02, atol=0.1)
        run.expect(f"dispatcher, {rows} rows", near)


def microseconds(run, function, calls=200, rounds=9):
    """Host time of a call: calls are enqueued, not waited for."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        dist.barrier(group=run.host)
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def call_times(run, comm, dtype):
    x = torch.zeros(1, HIDDEN, dtype=dtype, device=run.device)
    y, stream, lib = torch.empty_like(x), torch.cuda.current_stream().cuda_stream, comm._lib
    arguments = comm._comm, 0, x.data_ptr(), y.data_ptr(), x.numel(), rankfold.dtype_number(dtype), stream
    candidates = {
        "the C function through ctypes": lambda: lib.rf_all_reduce(*arguments),
        "all_reduce(x, out)": lambda: comm.all_reduce(x, y),
        "all_reduce(x)": lambda: comm.all_reduce(x),
        "should_use(x) and all_reduce(x)": lambda: comm.should_use(x) and comm.all_reduce(x),
        "torch.distributed.all_reduce(x)": lambda: dist.all_reduce(x, group=run.gpus),
    }
    for name, function in candidates.items():
        run.say(f"  {microseconds(run, function):7.2f} us  {name}")


def setup(run, comm, dtype, seconds):
    dist.barrier(group=run.host)
    begin = time.perf_counter()
    done = comm.setup(HIDDEN, dtype, SIZES, tune_cache=run.args.db, tune_seconds=seconds)
    run.expect(f"setup: {comm.disabled}", done)
    return time.perf_counter() - begin


def rank_main(rank, args, port):
    run = Run(rank, args, port)
    run.say(f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {args.world} x "
            f"{torch.cuda.get_device_name()}{', no peer access' if args.no_peer else ''}")
    for dtype in (getattr(torch, name) for name in args.dtypes):
        comm = run.communicator(None if args.no_nccl else run.gpus)
        first = setup(run, comm, dtype, args.tune)
        if not comm.initialized:
            break
        if run.rank == 0 and comm.tuned:
            plans = comm.status()["channels"][0]["plans"]
            won = [plan["rows"] for plan in plans if plan["fallback"]]
            print(f"{dtype}: tuned in {first:.2f} s: {comm.tuned.measured} measured, {comm.tuned.warm} known, "
                  f"{comm.tuned.wrong} wrong; baseline {comm.status()['baseline']}, faster at rows {won}")
            for plan in plans:
                ours, theirs = (plan[key] or 0 for key in ("median_us", "baseline_us"))
                print(f"  {plan['rows']:4} rows {ours:8.2f} us, NCCL {theirs:8.2f}, {plan['variant']}, {plan['rung']}")
        comm.destroy()
        comm = run.communicator(None)
        again = setup(run, comm, dtype, 0)
        run.say(f"{dtype}: set up with this database in {again * 1e3:.1f} ms")
        run.expect(f"set-up of {again:.2f} s, at most 0.5", again < 0.5)
        sums(run, comm, dtype)
        refusals(run, comm, dtype)
        captured = graphs(run, comm, dtype)
        dispatcher(run, comm, dtype)
        if dtype == torch.bfloat16:
            call_times(run, comm, dtype)
        torch.cuda.synchronize()
        captured.clear()
        comm.destroy()
    failures = torch.tensor([run.failures])
    dist.all_reduce(failures, group=run.host)
    dist.destroy_process_group()
    run.say(f"{failures.item()} failed" if failures.item() else "all well")
    sys.exit(1 if failures.item() else 0)


def import_times():
    program = ("import sys, time; sys.path.insert(0, {!r}); t = time.perf_counter(); import rankfold\n"
               "print(1e3 * (time.perf_counter() - t))").format(rankfold.HERE)
    return [float(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout)
            for _ in range(5)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--db", default=os.path.join(tempfile.gettempdir(), "rankfold-communicator.db"))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bfloat16", "float16", "float32"])
    parser.add_argument("--tune", type=float, default=5)
    parser.add_argument("--no-peer", action="store_true", help="ranks meet in host memory, NCCL's too")
    parser.add_argument("--no-nccl", action="store_true", help="NCCL is not measured beside ours")
    args = parser.parse_args()
    if args.no_peer:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    print("import: " + ", ".join(f"{milliseconds:.1f}" for milliseconds in import_times()) + " ms", flush=True)
    assert not torch.cuda.is_initialized()
    mp.spawn(rank_main, args=(args, 20000 + os.getpid() % 20000), nprocs=args.world)


if __name__ == "__main__":
    main()
