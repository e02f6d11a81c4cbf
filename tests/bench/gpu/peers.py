#!/usr/bin/env python3
"""Rankfold against NCCL, torch's symmetric memory and FlashInfer, on the GPUs of this machine.

    python3 peers.py --world 2 --shim SHIM.so --databases DIR --csv FILE

One process a rank, each with the GPU of its number. With NCCL_P2P_DISABLE=1 in the environment all
go through host memory; symmetric memory and FlashInfer, which cannot, are left out then.

Every contender's calls are captured in a graph; rounds are interleaved; a sample is one replay's
time a call, as the slowest rank saw it. "seq" is Rankfold's tuned plan, "dep" the one with dependent
launch, of the same database, "seq2" and "dep2" the same once more: what differs between the two is
noise. In column
"chain" a graph holds nothing but calls; in "between" every call follows a small matrix-vector
product, as in a decode step, and "none" is the products alone. Every result is checked before and
after it is timed: Rankfold's bit for bit on random bits, the others' within the rounding of sums in
bf16. Lines of the CSV: world,transport,column,bytes,contender,samples,median_us,p99_us,check,note.
"""
import argparse
import ctypes
import functools
import os
import shutil
import signal
import statistics
import sys
import time

import torch
import torch.distributed as dist

KIB, MIB = 1 << 10, 1 << 20
SIZES = [2 * KIB << i for i in range(16)]
BETWEEN_MOST = 512 * KIB
KEEP_FINALISTS = 6
BF16 = torch.bfloat16
P, I, U32, I64, U64 = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64)
RF_DEPENDENT = 4

BASELINE_PART = 0.2  # of the time for tuning, once more, for NCCL beside what is known then
TUNED_MOST = 32 * MIB  # larger ones go by their neighbour

# Whatever is neither a one-shot nor a two-shot over the usual wire may win anywhere.
OTHERS = ["*_h0_[!ot]*", "*_h0_[ot][!s]*", "*_peer_flag_*"]
# By "through host memory": up to how many bytes, what part of the time, and what can win there (from
# world to globs). Every field has both kinds of memory, and tactics with dependent launch, as the comms
# have that look it up: who measured by fewer is somebody else.
FIELDS = {
    False: [(MIB, 0.55, lambda world: ["*_peer_*", "*_os_host_tag_*_u1_t256_any_*"]),
            (8 * MIB, 0.22, lambda world: ["*_peer_*_t512_own_*", "*_peer_*_t1024_own_*", "*_peer_*_u4_t512_any_*",
                                           "*_os_host_flag_*_u2_t576_*", *OTHERS]),
            (TUNED_MOST, 0.23, lambda world: [*OTHERS, "*_os_peer_*_t1024_own_*" if world == 2 else "*_ts_peer_*_t512_own_*",
                                            "*_ts_host_flag_*_u2_t576_*"])],
    True: [(256 * KIB, 0.3, lambda world: ["*_host_[!f]*"]),
           (2 * MIB, 0.2, lambda world: ["*_host_tag_*_own_*", "*_host_flag_*", *OTHERS]),
           (TUNED_MOST, 0.5, lambda world: [*OTHERS, "*_ts_host_flag_*_u[12]_*", "*_os_host_tag_*_t128_own_dep"])],
}
# What NCCL is asked for, and up to how many bytes (peer, host) that was ever its best.
NCCL = {"nccl": ({}, None, None), "LL": ({"NCCL_PROTO": "LL"}, None, None),
        "LL128": ({"NCCL_PROTO": "LL128"}, None, 64 * KIB), "Simple": ({"NCCL_PROTO": "Simple"}, None, None),
        "tree": ({"NCCL_ALGO": "Tree"}, 64 * KIB, 64 * KIB)}


class World:
    """What a rank shares with the others."""

    def __init__(self, rank, size, host):
        self.rank, self.size, self.host = rank, size, host
        self.device = torch.device("cuda", rank)
        self.group = dist.new_group(backend="gloo")
        self.stream = torch.cuda.Stream()

    def barrier(self):
        dist.barrier(group=self.group)

    def slowest(self, numbers):
        """The maximum over ranks of each number."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def gather(self, thing):
        things = [None] * self.size
        dist.all_gather_object(things, thing, group=self.group)
        return things

    def any(self, flag):
        return self.slowest([float(flag)])[0] > 0

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)


def calls_of(size, host):
    """Calls in a graph: enough to hide what a replay costs."""
    steps = [(64 * KIB, 100), (512 * KIB, 40), (4 * MIB, 10), (64 * MIB, 3)] if host else \
            [(256 * KIB, 100), (2 * MIB, 40), (16 * MIB, 10), (64 * MIB, 4)]
    return next(calls for most, calls in steps if size <= most)


def replays_of(size, host):
    """Replays a round: 20, or fewer where one is long."""
    microseconds = calls_of(size, host) * (20 + size / 17e3 if host else 6 + size / 150e3)
    return max(4, min(20, int(40e3 / microseconds)))


# ---- data and what is right ----

def part_bits(rank, count, device):
    """Any bits at all: NaNs, infinities, denormals."""
    generator = torch.Generator(device).manual_seed(count * 16 + rank)
    bits = torch.randint(-32768, 32768, (count,), generator=generator, device=device, dtype=torch.int16)
    return bits.view(BF16)


def part_values(rank, count, device):
    generator = torch.Generator(device).manual_seed(count * 16 + 8 + rank)
    return torch.randn(count, generator=generator, device=device, dtype=torch.float32).to(BF16)


def oracle(parts):
    """fp32 in rank order, one rounding, every NaN the same."""
    total = parts[0].float()
    for part in parts[1:]:
        total += part.float()
    bits = total.to(BF16).view(torch.int16)
    return torch.where(torch.isnan(total), torch.full_like(bits, 0x7FFF), bits)


def tolerable(parts, got):
    total = sum(part.double() for part in parts)
    size = sum(part.double().abs() for part in parts)
    return bool(((got.double() - total).abs() <= size * len(parts) / 256 + 1e-30).all())


# ---- contenders ----

class Contender:
    """prepare(count) -> is it here? Then x is filled, call() enqueues on the current stream, and
    result() is the sum. captured() comes between a capture and its first replay, hand_over() on the
    way into and out of captures."""
    exact = False
    note = ""

    def prepare(self, count):
        return True

    def captured(self):
        pass

    def hand_over(self):
        pass

    def release(self):
        pass


class Ours(Contender):
    exact = True

    def __init__(self, lib, world, name, flags, database, shared, globs=()):
        self.lib, self.world, self.shared = lib, world, shared
        self.shim = lib.shim_open(name.encode(), world.rank, world.size, SIZES[-1], flags, database.encode(),
                                  (ctypes.c_char_p * len(globs))(*[glob.encode() for glob in globs]), len(globs))
        if not self.shim:
            raise RuntimeError(lib.shim_error().decode())

    def must(self, bad):
        if bad:
            raise RuntimeError(self.lib.shim_error().decode())

    def counts(self, sizes):
        return (U64 * len(sizes))(*[size // 2 for size in sizes])

    def tune(self, sizes, seconds):
        text = ctypes.create_string_buffer(200)
        self.must(self.lib.shim_tune(self.shim, self.counts(sizes), len(sizes), int(seconds * 1e3), text, 200))
        return text.value.decode()

    def prepare(self, count):
        self.must(self.lib.shim_prepare(self.shim, self.counts([2 * count]), 1))
        self.lib.shim_rebind(self.shim)
        text = ctypes.create_string_buffer(200)
        self.must(self.lib.shim_plan(self.shim, count, text, 200))
        self.note = text.value.decode()
        self.x, self.out = self.shared[0][:count], self.shared[1][:count]
        return True

    def call(self):
        self.must(self.lib.shim_call(self.shim, self.x.data_ptr(), self.out.data_ptr(), self.x.numel(),
                                     torch.cuda.current_stream().cuda_stream))

    def hand_over(self):
        self.lib.shim_rebind(self.shim)

    def result(self):
        return self.out

    def close(self):
        self.must(self.lib.shim_close(self.shim))


class Nothing(Contender):
    def call(self):
        pass


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Nccl(Contender):
    """ncclAllReduce itself, out of place, in a comm made while the environment asks for one protocol
    or algorithm."""
    BFLOAT16, SUM = 9, 0

    def __init__(self, world, shared, forced, most):
        self.most = most
        self.lib = ctypes.CDLL("libnccl.so.2")
        self.lib.ncclCommInitRank.argtypes = [ctypes.POINTER(P), I, UniqueId, I]
        self.lib.ncclAllReduce.argtypes = [P, P, ctypes.c_size_t, I, I, P, P]
        self.shared = shared
        unique = UniqueId()
        if world.rank == 0:
            self.must(self.lib.ncclGetUniqueId(ctypes.byref(unique)))
        unique = UniqueId.from_buffer_copy(world.gather(bytes(unique))[0])
        os.environ.update(forced)
        self.comm = P()
        self.must(self.lib.ncclCommInitRank(ctypes.byref(self.comm), world.size, unique, world.rank))
        for name in forced:
            del os.environ[name]

    def must(self, bad):
        if bad:
            raise RuntimeError(f"NCCL error {bad}")

    def prepare(self, count):
        if self.most and 2 * count > self.most:
            return False
        self.x, self.out = self.shared[0][:count], self.shared[1][:count]
        return True

    def call(self):
        self.must(self.lib.ncclAllReduce(self.x.data_ptr(), self.out.data_ptr(), self.x.numel(), self.BFLOAT16,
                                         self.SUM, self.comm, torch.cuda.current_stream().cuda_stream))

    def result(self):
        return self.out


class TorchNccl(Contender):
    """What a torch program calls; in place."""

    def __init__(self, shared):
        self.buffer = torch.empty_like(shared[0])

    def prepare(self, count):
        self.x = self.buffer[:count]
        return True

    def call(self):
        dist.all_reduce(self.x)

    def result(self):
        return self.x


class Symmetric(Contender):
    def __init__(self, op, world, shared):
        import torch.distributed._symmetric_memory as symmetric
        self.op, self.shared = getattr(torch.ops.symm_mem, op), shared
        self.in_place = op.endswith("_")
        self.group = dist.group.WORLD.group_name
        self.buffer = symmetric.empty(SIZES[-1] // 2, dtype=BF16, device=world.device)
        symmetric.rendezvous(self.buffer, self.group)

    def prepare(self, count):
        self.x, self.out = self.buffer[:count], self.shared[1][:count]
        return True

    def call(self):
        if self.in_place:
            self.op(self.x, "sum", self.group)
        else:
            self.op(self.x, "sum", self.group, self.out)

    def result(self):
        return self.x if self.in_place else self.out


class Mapped:
    """An allocation on every rank that all ranks have mapped."""

    def __init__(self, lib, world, size):
        self.lib, self.world, self.size = lib, world, size
        own, handle = P(), ctypes.create_string_buffer(64)
        bad = lib.fi_alloc(size, ctypes.byref(own), handle)
        self.pointers = []
        for rank, theirs in enumerate(world.gather(handle.raw)):
            pointer = P(own.value)
            if rank != world.rank:
                bad |= lib.fi_open(theirs, ctypes.byref(pointer))
            self.pointers.append(pointer.value)
        if world.any(bad):
            raise RuntimeError(f"FlashInfer: memory of {size} bytes: CUDA error {bad}")
        self.array = (I64 * world.size)(*self.pointers)

    def tensor(self):
        class Bytes:
            __cuda_array_interface__ = {"shape": (self.size // 2,), "typestr": "<i2", "version": 3,
                                        "data": (self.pointers[self.world.rank], False)}
        return torch.as_tensor(Bytes(), device=self.world.device).view(BF16)

    def free(self):
        self.world.barrier()
        for rank, pointer in enumerate(self.pointers):
            if rank != self.world.rank:
                self.lib.fi_unmap(pointer)
        self.world.barrier()
        self.lib.fi_free(self.pointers[self.world.rank])


class FlashInfer(Contender):
    """prepare() takes the best of a small search, which all ranks make alike."""

    def __init__(self, lib, world, shared):
        self.lib, self.world, self.shared = lib, world, shared

    def must(self, bad):
        if bad:
            raise RuntimeError(f"FlashInfer: CUDA error {bad}")

    def search(self, size):
        """Every candidate once, the fastest few again."""
        calls, candidates = (10 if size <= MIB else 3), self.candidates(size // 2)
        for again in (1, 5):
            times = []
            for self.config in candidates:
                graph = capture(self, self.world, calls, None)
                spans = timed(graph, self.world, again)
                times.append(min(spans))
                del graph
            ranked = sorted(zip(self.world.slowest(times), candidates))
            candidates = [candidate for _, candidate in ranked[:KEEP_FINALISTS]]
        self.config = candidates[0]
        self.note = "/".join(map(str, self.config))


class PcieIpc(FlashInfer):
    BLOCKS, THREADS, VARIANTS = (1, 2, 4, 8, 12, 16, 32, 64, 96, 128), (64, 128, 256, 512, 1024), (0, 1, 2, 4)
    slab = None

    def candidates(self, count):
        packs = count // 8
        every = [(v, b, t) for v in self.VARIANTS for b in self.BLOCKS for t in self.THREADS
                 if self.lib.fi_pcie_launchable(self.world.size, count, b, t, v)]
        return [c for c in every if c[0] == 4 or (c[1] - 1) * c[2] < packs <= 1024 * c[1] * c[2]]

    def prepare(self, count):
        self.slab = Mapped(self.lib, self.world, self.lib.fi_pcie_bytes(self.world.size, count))
        self.workspace = self.lib.fi_pcie_init(self.slab.array, self.world.rank, self.world.size, count)
        if not self.workspace:
            raise RuntimeError("FlashInfer: no workspace")
        self.world.barrier()
        self.x, self.out = self.shared[0][:count], self.shared[1][:count]
        self.search(2 * count)
        return True

    def call(self):
        variant, blocks, threads = self.config
        self.must(self.lib.fi_pcie_call(self.workspace, self.x.data_ptr(), self.out.data_ptr(), self.x.numel(),
                                        blocks, threads, variant, torch.cuda.current_stream().cuda_stream))

    def result(self):
        return self.out

    def release(self):
        if self.slab:
            self.lib.fi_pcie_free(self.workspace)
            self.slab.free()
            self.slab = None


class Custom(FlashInfer):
    MOST = 16 * MIB

    def __init__(self, lib, world, shared):
        super().__init__(lib, world, shared)
        self.signals = Mapped(lib, world, lib.fi_vllm_signal_bytes() + self.MOST)
        self.inputs = Mapped(lib, world, self.MOST)
        self.custom = lib.fi_vllm_init(self.signals.array, self.inputs.array, world.rank, world.size)
        if not self.custom:
            raise RuntimeError("FlashInfer: no custom all-reduce")
        self.buffer = self.inputs.tensor()

    def candidates(self, count):
        return [(b, t) for b in (4, 8, 16, 24, 36) for t in (256, 512) if (b - 1) * t < count // 8] or [(4, 512)]

    def prepare(self, count):
        if 2 * count > self.MOST:
            return False
        self.x, self.out = self.buffer[:count], self.shared[1][:count]
        self.search(2 * count)
        return True

    def call(self):
        blocks, threads = self.config
        self.must(self.lib.fi_vllm_call(self.custom, self.out.data_ptr(), self.x.numel(), blocks, threads,
                                        torch.cuda.current_stream().cuda_stream))

    def captured(self):
        self.must(self.lib.fi_vllm_captured(self.custom))

    def result(self):
        return self.out


# ---- libraries ----

def load_shim(path):
    lib = ctypes.CDLL(path)
    lib.shim_error.restype = ctypes.c_char_p
    lib.shim_open.restype = P
    lib.shim_open.argtypes = [ctypes.c_char_p, I, I, U64, U32, ctypes.c_char_p, P, ctypes.c_size_t]
    lib.shim_tune.argtypes = [P, P, ctypes.c_size_t, U32, ctypes.c_char_p, ctypes.c_size_t]
    lib.shim_baseline.argtypes = [P, P]
    lib.shim_prepare.argtypes = [P, P, ctypes.c_size_t]
    lib.shim_plan.argtypes = [P, U64, ctypes.c_char_p, ctypes.c_size_t]
    lib.shim_call.argtypes = [P, P, P, U64, P]
    lib.shim_rebind.argtypes = lib.shim_close.argtypes = [P]
    lib.shim_status.argtypes = [P, ctypes.c_char_p, ctypes.c_size_t]
    lib.shim_status.restype = ctypes.c_size_t
    lib.shim_oracle.argtypes = [P, P, U64, I]
    return lib


@functools.lru_cache
def load_flashinfer(path):
    lib = ctypes.CDLL(path)
    lib.fi_alloc.argtypes = [U64, P, ctypes.c_char_p]
    lib.fi_open.argtypes = [ctypes.c_char_p, P]
    lib.fi_unmap.argtypes = lib.fi_free.argtypes = [P]
    lib.fi_pcie_bytes.argtypes, lib.fi_pcie_bytes.restype = [I, I64], I64
    lib.fi_pcie_init.argtypes, lib.fi_pcie_init.restype = [P, I, I, I64], P
    lib.fi_pcie_free.argtypes = lib.fi_vllm_captured.argtypes = [P]
    lib.fi_pcie_launchable.argtypes = [I, I64, I, I, I]
    lib.fi_pcie_call.argtypes = [P, P, P, I64, I, I, I, P]
    lib.fi_vllm_signal_bytes.restype = U64
    lib.fi_vllm_init.argtypes, lib.fi_vllm_init.restype = [P, P, I, I], P
    lib.fi_vllm_call.argtypes = [P, P, I64, I, I, P]
    return lib


# ---- measuring ----

def capture(contender, world, calls, product):
    graph = torch.cuda.CUDAGraph()
    contender.hand_over()
    torch.cuda.synchronize()
    with torch.cuda.stream(world.stream):
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            for _ in range(calls):
                if product:
                    torch.mv(product[0], product[1], out=product[2])
                contender.call()
        finally:
            graph.capture_end()
    contender.hand_over()
    contender.captured()
    world.calls = calls
    return graph


def timed(graph, world, replays):
    """Microseconds a call of each replay; one more goes before them."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    with torch.cuda.stream(world.stream):
        graph.replay()
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
    world.stream.synchronize()
    return [a.elapsed_time(b) * 1e3 / world.calls for a, b in zip(marks, marks[1:])]


def check(contender, world, count):
    """Does a call of its own give the right sum?"""
    if isinstance(contender, Nothing):
        return True
    make = part_bits if contender.exact else part_values
    parts = [make(rank, count, world.device) for rank in range(world.size)]
    contender.x.copy_(parts[world.rank])
    if contender.result().data_ptr() != contender.x.data_ptr():
        contender.result().fill_(7)
    torch.cuda.synchronize()
    world.barrier()
    with torch.cuda.stream(world.stream):
        contender.call()
    world.stream.synchronize()
    got = contender.result()
    if contender.exact:
        right = torch.equal(got.view(torch.int16), oracle(parts))
    else:
        right = tolerable(parts, got)
    contender.hand_over()
    return not world.any(not right)


def check_oracle(lib, world):
    """The sums that peers are checked against are the library's own."""
    count = 4096
    parts = [part_bits(rank, count, "cpu") for rank in range(world.size)]
    out = torch.empty(count, dtype=BF16)
    pointers = (P * world.size)(*[part.data_ptr() for part in parts])
    bad = lib.shim_oracle(pointers, out.data_ptr(), count, world.size)
    if bad or not torch.equal(out.view(torch.int16), oracle(parts)):
        raise RuntimeError("the oracles differ")


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(world, column, size, contenders, product, rounds, write):
    """One line of the table: every contender at one size. One that fails goes from the dictionary."""
    count, calls = size // 2, calls_of(size, world.host)
    graphs, right = {}, {}
    for name, contender in list(contenders.items()):
        problem = None
        try:
            right[name] = check(contender, world, count)
            graphs[name] = capture(contender, world, calls, product)
        except Exception as error:  # pylint: disable=broad-except
            problem = error
        if world.any(problem is not None):
            world.say(f"{name} is left out: {problem}")
            del contenders[name]
            graphs.pop(name, None)
    for contender in contenders.values():  # finite numbers, as they are in models
        if not isinstance(contender, Nothing):
            contender.x.copy_(part_values(world.rank, count, world.device))
    torch.cuda.synchronize()
    world.calls = calls
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, graph in graphs.items():
            world.barrier()
            times[name] += timed(graph, world, replays_of(size, world.host))
    graphs.clear()
    for name, contender in contenders.items():
        right[name] &= check(contender, world, count)
    flat = world.slowest([t for values in times.values() for t in values])
    each, line = len(flat) // max(1, len(contenders)), f"{size:9}"
    for i, (name, contender) in enumerate(contenders.items()):
        values = flat[i * each:(i + 1) * each]
        median, p99 = statistics.median(values), quantile(values, 0.99)
        write(f"{world.size},{'host' if world.host else 'peer'},{column},{size},{name},{each},{median:.4f},"
              f"{p99:.4f},{'ok' if right[name] else 'WRONG'},{contender.note}")
        line += f"{median:9.2f}" + (" " if right[name] else "!")
    world.say(line)


def tune(lib, world, args, database, seconds, shared, nccl=None):
    """Every size in its field, by globs on names; the rest of the pack is not looked at there, so that
    a large size, of which every check moves a lot, is complete in seconds. With an NCCL communicator where
    all else is known already: that is measured alone, and may win."""
    few = min(args.sizes)
    for i, (most, part, globs) in enumerate(FIELDS[world.host]):
        sizes = [size for size in args.sizes if few <= size <= most]
        few = most + 1
        if sizes:
            ours = Ours(lib, world, f"bench-{os.getppid()}-field{i}{'n' if nccl else ''}", RF_DEPENDENT,
                        database, shared, globs(world.size))
            if nccl:
                ours.must(lib.shim_baseline(ours.shim, nccl))
            world.say(f"{sizes[0]} to {sizes[-1]} bytes: {ours.tune(sizes, part * seconds)}")
            ours.close()


def database_of(world, args, more=""):
    return f"{args.databases}/w{world.size}-{'host' if world.host else 'peer'}{more}.db"


def tune_nccl(lib, world, args, shared, nccl):
    """NCCL as the baseline, in a copy of the database: where it wins ours would not run."""
    database, copy = database_of(world, args), database_of(world, args, "-nccl")
    if world.rank == 0:
        shutil.copy(database, copy)
    tune(lib, world, args, copy, BASELINE_PART * args.tune, shared, nccl)


def open_ours(lib, world, args, shared):
    """The four: with and without dependent launch, and both once more."""
    pair, name = {}, f"bench-{os.getppid()}"
    if args.tune > 0:
        tune(lib, world, args, database_of(world, args), args.tune, shared)
    for kind, flags in (("dep", RF_DEPENDENT), ("dep2", RF_DEPENDENT), ("seq", 0), ("seq2", 0)):
        pair[kind] = Ours(lib, world, f"{name}-{kind}", flags, database_of(world, args), shared)
        if args.tune > 0:  # nothing to measure, or the time did not suffice: then by what there is
            world.say(f"{kind}: {pair[kind].tune([size for size in args.sizes if size <= TUNED_MOST], 0.5)}")
    return pair


def open_contenders(lib, world, args, shared):
    makers = {}
    for name, (forced, *most) in NCCL.items():
        makers[name] = lambda forced=forced, most=most[world.host]: Nccl(world, shared, forced, most)
    makers["torch"] = lambda: TorchNccl(shared)
    if not world.host:
        makers["sym1"] = lambda: Symmetric("one_shot_all_reduce_out", world, shared)
        makers["sym2"] = lambda: Symmetric("two_shot_all_reduce_", world, shared)
        if args.flashinfer and world.size in (2, 4):
            makers["fi"] = lambda: PcieIpc(load_flashinfer(args.flashinfer), world, shared)
            makers["fi-ar"] = lambda: Custom(load_flashinfer(args.flashinfer), world, shared)
    try:
        contenders = open_ours(lib, world, args, shared)
    except RuntimeError as error:
        world.say(f"Rankfold is left out: {error}")
        contenders = {}
    for name, make in makers.items():
        try:
            contenders[name] = make()
        except Exception as error:  # another torch, say: named, and left out
            world.say(f"{name} is left out: {error}")
    return contenders


def rank_main(rank, args):
    host = os.environ.get("NCCL_P2P_DISABLE", "0") != "0"
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{args.port}", rank=rank,
                            world_size=args.world)
    world = World(rank, args.world, host)
    lib = load_shim(args.shim)
    check_oracle(lib, world)
    file = open(args.csv, "w", encoding="ascii", buffering=1) if rank == 0 else None

    def write(text):
        if file:
            file.write(text + "\n")

    shared = [torch.zeros(SIZES[-1] // 2, dtype=BF16, device=world.device) for _ in range(2)]
    contenders = open_contenders(lib, world, args, shared)
    facts = (f"{args.world} x {torch.cuda.get_device_name()}, {'host' if host else 'peer'}, torch {torch.__version__}, "
             f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, FlashInfer {args.flashinfer_version}, "
             f"{args.rounds} rounds; us a call, median, max over ranks")
    world.say(facts)
    write("# " + facts)
    status = ctypes.create_string_buffer(4096)
    if "dep" in contenders:
        lib.shim_status(contenders["dep"].shim, status, 4096)
        write("# " + status.value.decode())
    columns = args.columns.split(",")
    shape = (2048, 2048)
    product = [torch.rand(s, dtype=BF16, device=world.device) for s in (shape, shape[1], shape[0])]
    with torch.cuda.stream(world.stream):  # its library sets itself up outside of captures
        torch.mv(product[0], product[1], out=product[2])
    torch.cuda.synchronize()
    if "between" in columns:
        contenders["none"] = Nothing()
    world.say("    bytes" + "".join(f"{name:>9} " for name in contenders))
    for size in args.sizes:
        if world.any(time.time() > args.until):
            world.say("no time left")
            break
        here = {}
        for name, contender in list(contenders.items()):
            try:
                if contender.prepare(size // 2):
                    here[name] = contender
            except RuntimeError as error:
                world.say(f"{name} is left out: {error}")
                del contenders[name]
        nothing = here.pop("none", None)
        before = dict(here)
        if "chain" in columns:
            measure(world, "chain", size, here, None, args.rounds, write)
        if nothing and size <= BETWEEN_MOST:
            here["none"] = nothing
            measure(world, "between", size, here, product, args.rounds, write)
        for name, contender in before.items():
            contender.release()
            if name not in here:
                del contenders[name]
    for contender in contenders.values():
        if isinstance(contender, Ours):
            contender.close()
    if args.tune > 0 and "dep" in contenders and "nccl" in contenders and \
            not world.any(time.time() + BASELINE_PART * args.tune > args.until):
        tune_nccl(lib, world, args, shared, contenders["nccl"].comm)
    write("# complete")
    world.barrier()


# ---- one process a rank ----

def be_rank(rank, args):
    try:
        rank_main(rank, args)
    except BaseException as error:  # pylint: disable=broad-except
        print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)  # what NCCL and graphs do at their ends is not what this is about


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--flashinfer", help="library made of flashinfer.cu")
    parser.add_argument("--flashinfer-version", default="unknown")
    parser.add_argument("--databases", default=".", help="folder of the tactic databases")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--tune", type=float, default=15, help="seconds; 0: don't")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--columns", default="chain,between")
    parser.add_argument("--sizes", type=lambda t: [int(s) for s in t.split(",")], default=SIZES)
    parser.add_argument("--seconds", type=float, default=600, help="begin no size after these")
    args = parser.parse_args()
    args.until = time.time() + args.seconds
    args.csv = os.path.abspath(args.csv)
    args.port = 20000 + os.getpid() % 20000
    children = {}
    for rank in range(args.world):
        pid = os.fork()
        if pid == 0:
            be_rank(rank, args)
        children[pid] = rank
    failed = 0
    while children:
        pid, status = os.wait()
        children.pop(pid, None)
        if status and not failed:
            failed = 1
            time.sleep(2)  # for the others to say what they saw
            for other in children:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main())
