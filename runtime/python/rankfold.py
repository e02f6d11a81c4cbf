"""Rankfold's communicator for inference engines in Python: one file over librankfold.so.

    comm = rankfold.Communicator(cpu_group, device)        # cheap; touches neither CUDA nor the library
    comm.setup(hidden_dim, torch.bfloat16, capture_sizes)  # collective, when the weights are loaded
    if comm.should_use(x):                                 # the same answer on all ranks
        x = comm.all_reduce(x)
    else:
        torch.distributed.all_reduce(x, group=device_group)
    with comm.capture():                                   # around the capture of CUDA graphs
        ...
    comm.destroy()                                         # before the process groups go

If one rank cannot, none does: setup() returns False everywhere and `disabled` has the reason, which names
the rank. Sums are in fp32, in rank order, rounded once: the same bits on all ranks, whatever was tuned.

A group is a process group of torch.distributed that works on the CPU (gloo), None for the default one, or any
object with `rank`, `world` and `allgather(data, timeout)`: every rank hands in equally many bytes and gets the
list of all ranks' bytes, in rank order; TimeoutError after `timeout` seconds. It is used inside setup() only.

A tensor is torch's, or any object with data_ptr(), numel(), dtype, device, is_contiguous(), shape and
new_empty(shape).

The library is $RANKFOLD_LIBRARY, or librankfold.so.0 beside this file, where it was installed or built, or where
the loader finds it. On a machine with GPUs it has to hold a pack for them: `ninja h200` builds such a one.

SPDX-License-Identifier: Apache-2.0
"""
import contextlib
import ctypes
from ctypes import c_char, c_char_p, c_double, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
import errno
import functools
import os
import sys

VERSION = 0, 1, 0  # of the library that this file knows

# ---- rankfold.h: tests/python/test_header.py compares all of this with it ----

RESULTS = {
    "OK": 0, "FALLBACK": 1,
    "E_ARG": 10, "E_DTYPE": 11, "E_ALIGN": 12, "E_OVERLAP": 13, "E_CAPACITY": 14, "E_CHANNEL": 15,
    "E_SYSTEM": 20, "E_MEMORY": 21, "E_BACKEND": 22, "E_PACK": 23, "E_VARIANT": 24,
    "E_TIMEOUT": 30, "E_PEER": 31, "E_MISMATCH": 32, "E_REMOTE": 33, "E_ABORTED": 34, "E_POISONED": 35, "E_CLOSED": 36,
    "E_STREAM": 40, "E_CAPTURE": 41, "E_GENERATION": 42,
    "E_DB": 50, "E_DB_FOREIGN": 51, "E_DB_NEWER": 52, "E_DB_CORRUPT": 53, "E_DB_LOCKED": 54, "E_DB_READONLY": 55,
    "E_DB_FULL": 56, "E_DB_ABSENT": 57,
    "E_WRONG": 60,
}
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
F32, BF16, F16 = DTYPES.values()
EAGER, GRAPH = 0, 1
CPU, CUDA = 0, 1
REASSOC, LOSSY, DEPENDENT, SHARE_DEVICE, OPT_IN, NO_PEER = 1, 2, 4, 8, 16, 32  # flags of a Communicator
STORE_READ = 1
MOST_COUNT = 1 << 40  # elements; the library's own limit is less

ALLGATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_int)
LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
BASELINE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_void_p)
PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


class rf_error(ctypes.Structure):
    _fields_ = [("code", c_int), ("rank", c_int), ("step", c_char_p), ("text", c_char * 480)]


class rf_shape(ctypes.Structure):
    _fields_ = [("op", c_int), ("dtype", c_int), ("mode", c_int), ("rows", c_uint64), ("hidden", c_uint64)]


class rf_bootstrap(ctypes.Structure):
    _fields_ = [("ctx", c_void_p), ("rank", c_int), ("world", c_int), ("allgather", ALLGATHER), ("free_ctx", c_void_p)]


class rf_variant_info(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p), ("sku", c_char_p), ("toolchain", c_char_p), ("hash", c_char * 33), ("op", c_int),
        ("dtype", c_int), ("world", c_int), ("hidden", c_uint64), ("algorithm", c_char_p), ("transport", c_char_p),
        ("wire", c_char_p), ("isa", c_char_p), ("copy", c_char_p), ("unroll", c_uint), ("reassoc", c_int),
        ("lossy", c_int), ("dependent", c_int),
    ]


class rf_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("backend", c_int), ("device", c_int), ("packs", c_void_p), ("n_packs", c_size_t),
        ("store", c_void_p), ("capacity_bytes", c_uint64), ("channels", c_uint32), ("deadline_ms", c_uint32),
        ("create_timeout_ms", c_uint32), ("flags", c_uint32), ("log", LOG), ("log_ctx", c_void_p),
    ]


class rf_baseline(ctypes.Structure):
    _fields_ = [("name", c_char * 160), ("all_reduce", BASELINE), ("ctx", c_void_p)]


class rf_plan_info(ctypes.Structure):
    _fields_ = [
        ("variant", c_char * 96), ("grid", c_uint32), ("rung", c_int), ("fallback", c_int), ("median_us", c_double),
        ("reason", c_char * 256), ("baseline_us", c_double), ("measured_rows", c_uint64), ("measured_hidden", c_uint64),
    ]


class rf_health(ctypes.Structure):
    _fields_ = [("code", c_int), ("channel", c_int), ("culprit", c_int), ("sequence", c_uint64), ("calls", c_uint64)]


class rf_tune_options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("budget_ms", c_uint32), ("rounds", c_uint32), ("flags", c_uint32),
        ("seed", c_uint64), ("variant_filter", c_char_p), ("progress", PROGRESS), ("progress_ctx", c_void_p),
    ]


class rf_tune_summary(ctypes.Structure):
    _fields_ = [
        ("shapes", c_uint32), ("warm", c_uint32), ("unmatched", c_uint32), ("unfinished", c_uint32),
        ("measured", c_uint32), ("wrong", c_uint32), ("timeout", c_uint32), ("infeasible", c_uint32),
        ("resets", c_uint32), ("seconds", c_double),
    ]


PROTOTYPES = """
uint32_t rf_version_number(void);
const char *rf_version_string(void);
const char *rf_strerror(rf_result);
size_t rf_dtype_size(rf_dtype);
rf_result rf_oracle_all_reduce(const void *const *, void *, uint64_t, rf_dtype, int);
size_t rf_pack_count(const rf_pack *);
rf_result rf_pack_variant(const rf_pack *, size_t, rf_variant_info *);
rf_result rf_store_open(const char *, const char *, uint32_t, rf_store **, rf_error *);
void rf_store_close(rf_store *);
rf_result rf_comm_create(const rf_config *, const rf_bootstrap *, rf_comm **, rf_error *);
rf_result rf_baseline_nccl(void *, rf_baseline *, rf_error *);
rf_result rf_comm_baseline(rf_comm *, const rf_baseline *, rf_error *);
rf_result rf_channel_rebind(rf_comm *, int);
rf_result rf_prepare(rf_comm *, int, const rf_shape *, size_t, rf_error *);
rf_result rf_all_reduce(rf_comm *, int, const void *, void *, uint64_t, rf_dtype, void *);
rf_result rf_plan_query(const rf_comm *, int, uint64_t, rf_dtype, rf_mode, rf_plan_info *);
rf_result rf_comm_check(const rf_comm *, rf_health *);
const rf_error *rf_comm_error(const rf_comm *);
rf_result rf_comm_close(rf_comm *, uint32_t, rf_error *);
void rf_comm_destroy(rf_comm *);
size_t rf_status_json(const rf_comm *, char *, size_t);
rf_result rf_tune(rf_comm *, int, const rf_shape *, size_t, const rf_tune_options *, rf_tune_summary *, rf_error *);
int rf_can_profile(const rf_comm *);
rf_result rf_cpu_stream_create(rf_cpu_stream **, rf_error *);
rf_result rf_cpu_stream_synchronize(rf_cpu_stream *);
void rf_cpu_stream_destroy(rf_cpu_stream *);
rf_result rf_cpu_capture_begin(rf_cpu_stream *);
rf_result rf_cpu_capture_end(rf_cpu_stream *, rf_cpu_graph **);
rf_result rf_cpu_graph_launch(const rf_cpu_graph *, rf_cpu_stream *);
void rf_cpu_graph_destroy(rf_cpu_graph *);
"""

TYPES = {
    "void": None, "int": c_int, "size_t": c_size_t, "uint32_t": c_uint32, "uint64_t": c_uint64,
    "rf_result": c_int, "rf_dtype": c_int, "rf_mode": c_int, "const char *": c_char_p,
    "const rf_error *": ctypes.POINTER(rf_error),
}


class Error(RuntimeError):
    """What the library refused or met: `code`, of RESULTS, and `rank`, which failed or is to blame; -1: unknown."""

    def __init__(self, code, text, rank=-1):
        super().__init__(code, text, rank)
        self.code, self.text, self.rank = code, text, rank

    def __str__(self):
        return f"{self.text} ({next((name for name, value in RESULTS.items() if value == self.code), self.code)})"


def check(code, err):
    """Raises what a function said in its rf_error."""
    if code != RESULTS["OK"]:
        raise Error(code, err.text.decode(errors="replace"), err.rank)


# ---- the library ----

HERE = os.path.dirname(os.path.abspath(__file__))


def _first_file(*names):
    """The first of these, as seen from this file, that is there; else None."""
    paths = (os.path.normpath(os.path.join(HERE, name)) for name in names)
    return next((path for path in paths if os.path.exists(path)), None)


@functools.lru_cache(maxsize=None)
def load():
    """The library with its functions declared. Loading it touches no driver. Raises Error."""
    path = os.environ.get("RANKFOLD_LIBRARY") or _first_file(
        "librankfold.so.0", "librankfold.so", "../../lib/librankfold.so.0", "../../generated/cpu/librankfold.so.0")
    try:
        lib = ctypes.CDLL(path or "librankfold.so.0")
        number = lib.rf_version_number()
    except (OSError, AttributeError) as error:
        raise Error(RESULTS["E_BACKEND"], f"{path or 'librankfold.so.0'} cannot be loaded: {error}") from None
    expected = VERSION[0] * 10000 + VERSION[1] * 100 + VERSION[2]
    if number != expected:
        raise Error(RESULTS["E_BACKEND"], f"{path} has version number {number}, rankfold.py expects {expected}")
    for line in PROTOTYPES.strip().splitlines():
        head, _, tail = line.partition("(")
        at = head.index("rf_", head.rindex(" "))
        function = getattr(lib, head[at:])
        function.restype = _type(head[:at])
        function.argtypes = [_type(text) for text in tail[:-2].split(",") if text != "void"]
    return lib


def _type(text):
    text = text.strip()
    return TYPES[text] if text in TYPES or not text.endswith("*") else c_void_p


def packs(backend):
    """Those of the library that have kernels for a backend, as addresses, and the names of all that it holds."""
    lib, info, found, names = load(), rf_variant_info(), [], []
    for pack in (c_void_p * 256).in_dll(lib, "rf_packs"):
        if not pack:
            break
        if lib.rf_pack_variant(pack, 0, ctypes.byref(info)) == RESULTS["OK"]:
            names.append(info.sku.decode())
            if (info.transport == b"cpu") == (backend == CPU):
                found.append(pack)
    return found, names


# ---- groups ----

class TorchGroup:
    """A process group of torch.distributed, used on the CPU."""

    def __init__(self, group):
        import torch.distributed as dist
        self.group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)

    def allgather(self, data, timeout):
        import datetime
        import torch
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        work = torch.distributed.all_gather(parts, mine, group=self.group, async_op=True)
        work.wait(datetime.timedelta(seconds=timeout))
        return [bytes(part.tolist()) for part in parts]


def bootstrap(group, trouble):
    """An rf_bootstrap over a group. Exceptions do not cross C: they go to the list `trouble`."""
    def allgather(_, mine, out, size, timeout_ms):
        try:
            data = b"".join(group.allgather(ctypes.string_at(mine, size), timeout_ms / 1000))
            if len(data) != size * group.world:
                raise ValueError(f"allgather gave {len(data)} bytes, expected {size * group.world}")
            ctypes.memmove(out, data, len(data))
            return 0
        except BaseException as error:  # an interrupt, too
            trouble.append(error)
            return errno.ETIMEDOUT if isinstance(error, TimeoutError) else errno.EPROTO
    return rf_bootstrap(rank=group.rank, world=group.world, allgather=ALLGATHER(allgather))


NOTE_BYTES = 512


def agree(group, reason, terms="", timeout=60):
    """Why the group does not go on, the same on all ranks: a rank's reason, or terms that differ. None: it does."""
    texts = (text.encode(errors="replace") for text in (reason or "", terms))
    note = b"".join(text[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0") for text in texts)
    notes = list(group.allgather(note, timeout))
    sizes = [len(part) for part in notes]
    if sizes != [len(note)] * group.world:
        raise ValueError(f"allgather gave {sizes} bytes, expected {len(note)} of each rank")
    texts = [[part.rstrip(b"\0").decode(errors="replace") for part in (note[:NOTE_BYTES], note[NOTE_BYTES:])]
             for note in notes]
    for rank, (theirs, _) in enumerate(texts):
        if theirs:
            return theirs if all(other == theirs for other, _ in texts) else f"rank {rank}: {theirs}"
    for rank, (_, theirs) in enumerate(texts):
        if theirs != texts[0][1]:
            return f"the ranks disagree: {theirs} on rank {rank}, {texts[0][1]} on rank 0"
    return None


# ---- devices ----

class Cpu:
    backend, index, name = CPU, 0, "cpu"

    def stream(self):
        return None

    def capturing(self):
        return False

    def synchronize(self):
        pass


class Cuda:
    """A GPU through torch, whose current stream it is that calls are launched on. No index: torch's current device."""

    def __init__(self, index):
        import torch
        self.backend, self.index = CUDA, int(index) if index else torch.cuda.current_device()
        self.name = f"cuda:{self.index}"
        self.capturing = torch.cuda.is_current_stream_capturing
        self.synchronize = functools.partial(torch.cuda.synchronize, self.index)
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # the same, without an object for every call
        self.stream = functools.partial(raw, self.index) if raw else self.current

    def current(self):
        import torch
        return torch.cuda.current_stream(self.index).cuda_stream


def device_of(name):
    kind, _, index = ("cuda:" + name if name.isdigit() else name).partition(":")
    if kind not in ("cpu", "cuda") or index and not index.isdigit():
        raise ValueError(f"device is '{name}', expected 'cpu', 'cuda' or 'cuda:N'")
    return Cpu() if kind == "cpu" else Cuda(index)


# ---- what callers hand in ----

name_of = functools.lru_cache(maxsize=None)(str)  # of a device


@functools.lru_cache(maxsize=None)
def dtype_number(dtype):
    """The rf_dtype of torch.bfloat16, "bfloat16" and the like; None: none that the library sums."""
    return DTYPES.get(str(dtype).rpartition(".")[2])


def nccl_address(nccl):
    """The ncclComm_t of what callers have: itself as a number or c_void_p, or a process group of torch.distributed."""
    if nccl is None or isinstance(nccl, int):
        return nccl
    if isinstance(nccl, c_void_p):
        return nccl.value
    import torch
    tell = getattr(nccl._get_backend(torch.device("cuda")), "_comm_ptr", None)
    if tell is None:
        raise ValueError("the process group is not NCCL's, or this torch does not tell its communicator")
    address = tell()
    if not address:
        raise ValueError("the process group has no NCCL communicator before its first collective")
    return address


def empty_like(tensor):
    torch = sys.modules.get("torch")
    if torch and isinstance(tensor, torch.Tensor):
        return torch.empty_like(tensor)
    return tensor.new_empty(tensor.shape)


def _whole(name, value, least=1):
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, expected a whole number from {least} up")
    return value


def _log(_, level, line):
    import logging
    level = (logging.ERROR, logging.WARNING, logging.INFO)[level]
    logging.getLogger("rankfold").log(level, "%s", line.decode(errors="replace"))


_LOG = LOG(_log)


class Communicator:
    """All-reduce between the ranks of `group`, all on one machine, each on a `device` of its own: "cuda:1", 1 or a
    torch.device; "cuda" is the current one; "cpu". To be used by one thread at a time.

    nccl: the engine's own communicator of these ranks, a process group with NCCL or an ncclComm_t, which has to outlive
    this one. setup(tune_seconds=...) then measures it too, and should_use() is False where it won.

    initialized   setup() succeeded, destroy() was not called since
    disabled      why it cannot be used, the same text on all ranks; None when it can
    tuned         rf_tune_summary of the last setup(); None if that did not tune
    """

    def __init__(self, group, device, nccl=None, flags=0, deadline_ms=0):
        self.disabled, self.tuned = "setup() was not called", None
        self._group, self._device_name, self._flags, self._deadline_ms = group, str(device), flags, deadline_ms
        self._nccl, self._comm, self._store, self._moving = nccl, None, None, 0

    @property
    def initialized(self):
        return self._comm is not None

    # ---- beginning ----

    def setup(self, hidden_dim, dtype, capture_sizes, tune_cache=None, tune_seconds=0):
        """Collective. Makes the communicator for up to max(capture_sizes) rows of hidden_dim elements and prepares
        exactly these sizes, on "cuda" for graphs. Decisions come from the database `tune_cache` (None: $RANKFOLD_DB,
        else the user's own), which rank 0 reads; with tune_seconds, what it lacks is measured, for about as long, and
        kept there. True: initialized; else `disabled` says why. Raises if it is initialized already."""
        if self.initialized:
            raise ValueError("setup() was called already: destroy() comes before the next one")
        self.disabled, self.tuned = "setup() was interrupted", None
        try:
            group = self._group if isinstance(getattr(self._group, "world", None), int) else TorchGroup(self._group)
            self.disabled = self._setup(group, hidden_dim, dtype, capture_sizes, tune_cache, tune_seconds)
        except Exception as error:  # the group's: there is no way to tell the others
            self.disabled = f"the group failed: {error!r}"
        finally:
            if self.disabled:
                self._drop()
        return self.initialized

    def _setup(self, group, hidden_dim, dtype, capture_sizes, tune_cache, tune_seconds):
        """The reason why not, agreed; None: done. Nothing that one rank does alone fails between two agreements."""
        terms, reason = "", None
        try:
            terms = self._read(hidden_dim, dtype, capture_sizes, tune_seconds)
            config = self._configure(group, tune_cache, tune_seconds)
        except Exception as error:
            reason = str(error) or repr(error)  # some have no text
        reason = agree(group, reason, terms)
        if reason:
            return reason
        try:
            self._create(group, config)
            self.prepare(self._sizes)
            self._tune(tune_seconds)
        except Exception as error:
            reason = str(error) or repr(error)  # some have no text
        return agree(group, reason)

    def _read(self, hidden_dim, dtype, capture_sizes, tune_seconds):
        """Checks and keeps the arguments; gives what has to be the same on all ranks, as a text."""
        self._hidden, self._dtype = _whole("hidden_dim", hidden_dim), dtype_number(dtype)
        if self._dtype is None:
            raise ValueError(f"dtype is {dtype}, expected one of {', '.join(DTYPES)}")
        self._sizes = sorted({_whole("a capture size", size) for size in capture_sizes})
        if not self._sizes:
            raise ValueError("capture_sizes is empty")
        if not 0 <= tune_seconds <= 86400:
            raise ValueError(f"tune_seconds is {tune_seconds!r}, expected 0 to 86400")
        for name, value in (("flags", self._flags), ("deadline_ms", self._deadline_ms)):
            if _whole(name, value, least=0) >= 1 << 32:  # ctypes would cut it down
                raise ValueError(f"{name} is {value}, expected less than 2**32")
        self._device = device_of(self._device_name)
        self._max_count = self._sizes[-1] * self._hidden
        if self._max_count > MOST_COUNT:  # the same, to 64 bits
            raise ValueError(f"{self._sizes[-1]} rows of {hidden_dim} elements are more than {MOST_COUNT}")
        kind, sizes = self._device.name.partition(":")[0], f"{len(self._sizes)} sizes up to {self._sizes[-1]}"
        return f"{kind}, {sizes} x {hidden_dim} {list(DTYPES)[self._dtype]}, tune_seconds {tune_seconds}"

    def _configure(self, group, tune_cache, tune_seconds):
        self._lib, err = load(), rf_error()
        found, names = packs(self._device.backend)
        if not found:
            raise ValueError(f"the library holds kernels for {', '.join(names)} only, none for {self._device.name}")
        if group.rank == 0:
            store = c_void_p()
            shipped = _first_file("shipped.db", "../../generated/shipped.db")
            paths = [None if path is None else os.fsencode(path) for path in (tune_cache, shipped)]
            if paths[0] == b"" or b"\0" in (paths[0] or b""):
                raise ValueError(f"tune_cache is {tune_cache!r}, expected the path of a file")
            flags = 0 if tune_seconds else STORE_READ
            check(self._lib.rf_store_open(*paths, flags, ctypes.byref(store), ctypes.byref(err)), err)
            self._store = store
        self._packs = (c_void_p * len(found))(*found)  # borrowed by the comm
        return rf_config(struct_size=ctypes.sizeof(rf_config), backend=self._device.backend, device=self._device.index,
                         packs=ctypes.addressof(self._packs), n_packs=len(found), store=self._store, flags=self._flags,
                         capacity_bytes=self._max_count * self._lib.rf_dtype_size(self._dtype),
                         deadline_ms=self._deadline_ms, log=_LOG if group.rank == 0 else LOG())

    def _create(self, group, config):
        comm, err, trouble = c_void_p(), rf_error(), []
        boot = bootstrap(group, trouble)
        code = self._lib.rf_comm_create(ctypes.byref(config), ctypes.byref(boot), ctypes.byref(comm), ctypes.byref(err))
        for error in trouble:
            raise error
        check(code, err)
        self._comm, self._pid = comm, os.getpid()
        self._offer_baseline()

    def _offer_baseline(self):
        """Collective. One rank without, and no rank has one: status() says why."""
        baseline, err = rf_baseline(name=b"none was given"), rf_error()
        try:
            address = nccl_address(self._nccl)
            if address:
                self._lib.rf_baseline_nccl(address, ctypes.byref(baseline), None)
        except Exception as error:
            baseline.name = (str(error) or repr(error)).encode(errors="replace")[:159]
        code = self._lib.rf_comm_baseline(self._comm, ctypes.byref(baseline), ctypes.byref(err))
        if code != RESULTS["E_BACKEND"]:
            check(code, err)

    def _shapes(self, sizes):
        mode = GRAPH if self._device.backend == CUDA else EAGER
        return (rf_shape * len(sizes))(*[rf_shape(0, self._dtype, mode, size, self._hidden) for size in sizes])

    def prepare(self, sizes):
        """Collective. Prepares more sizes, of up to those of setup(). Raises Error on all ranks; earlier ones stand.
        ValueError, before the others are asked, for what is no size at all."""
        self._need_comm()
        for size in sizes:
            if _whole("a size", size) > MOST_COUNT // self._hidden:
                raise ValueError(f"{size} rows of {self._hidden} elements are more than {MOST_COUNT}")
        shapes, err = self._shapes(sizes), rf_error()
        check(self._lib.rf_prepare(self._comm, 0, shapes, len(shapes), ctypes.byref(err)), err)
        self._worth = {}

    def _tune(self, seconds):
        if not seconds:
            return
        shapes, err, summary = self._shapes(self._sizes), rf_error(), rf_tune_summary()
        options = rf_tune_options(struct_size=ctypes.sizeof(rf_tune_options), budget_ms=max(1, int(seconds * 1000)))
        code = self._lib.rf_tune(self._comm, 0, shapes, len(shapes), ctypes.byref(options), ctypes.byref(summary),
                                 ctypes.byref(err))
        if not RESULTS["E_DB"] <= code < RESULTS["E_WRONG"]:  # without a database, what was measured stays in use
            check(code, err)
        elif self._store:
            _log(None, 1, err.text)
        self.tuned = summary
        self._worth = {}

    # ---- use ----

    def should_use(self, tensor):
        """Whether all_reduce() takes this tensor, and the engine's own collective was not measured faster. The same on
        all ranks for tensors of the same shape."""
        if self._comm is None or self._refusal(tensor):
            return False
        count, mode = tensor.numel(), GRAPH if self._device.capturing() else EAGER
        worth = self._worth.get((count, mode))
        if worth is None:
            plan = rf_plan_info()
            code = self._lib.rf_plan_query(self._comm, 0, count, self._dtype, mode, ctypes.byref(plan))
            worth = self._worth[count, mode] = code == RESULTS["OK"] and not plan.fallback
        return worth

    def all_reduce(self, tensor, out=None, stream=None):
        """The sum over all ranks: in `out`, which may be `tensor` itself, else in a new tensor. On `stream`, a raw
        handle, else on the current one; on "cpu" the call returns when the sum is there. None, with nothing done,
        where the engine's own collective was measured faster: should_use() is False there. Raises ValueError for a
        tensor that should_use() refuses, Error for what the library meets."""
        self._need_comm()
        if stream is not None and not isinstance(stream, int):
            raise ValueError(f"stream is {stream!r}, expected a raw handle, a number")
        reason = self._refusal(tensor)
        if out is None:
            out = None if reason else empty_like(tensor)
        elif out is not tensor and not reason:
            reason = self._refusal(out)
            if not reason and out.numel() != tensor.numel():
                reason = f"out has {out.numel()} elements, expected {tensor.numel()}"
        if reason:
            raise ValueError(reason)
        if self._moving:  # eager and captured launches take turns
            self._rebind()
        code = self._lib.rf_all_reduce(self._comm, 0, tensor.data_ptr(), out.data_ptr(), tensor.numel(), self._dtype,
                                       self._device.stream() if stream is None else stream)
        if code == RESULTS["OK"]:
            return out
        if code == RESULTS["FALLBACK"]:
            return None
        error = self._lib.rf_comm_error(self._comm).contents
        raise Error(code, error.text.decode(errors="replace"), error.rank)

    def _need_comm(self):
        if self._comm is None:
            raise ValueError(f"the communicator cannot be used: {self.disabled}")

    def _refusal(self, tensor):
        if dtype_number(tensor.dtype) != self._dtype:
            return f"dtype is {tensor.dtype}, setup() was for {list(DTYPES)[self._dtype]}"
        if name_of(tensor.device) != self._device.name:
            return f"the tensor is on {tensor.device}, the communicator on {self._device.name}"
        if tensor.numel() > self._max_count:
            return f"{tensor.numel()} elements are more than the {self._max_count} of setup()"
        return None if tensor.is_contiguous() else "the tensor is not contiguous"

    @contextlib.contextmanager
    def capture(self):
        """Around everything that captures graphs, eager warm-up runs on the capturing stream included: the channel
        goes to that stream and, whatever happens, back to the one that launches next. Waits for the device before
        and after, so it is entered outside of a capture. Does nothing while the communicator is disabled."""
        if self._comm is None:
            yield
            return
        if self._device.capturing():
            raise ValueError("capture() goes around the capture of a graph, not into it")
        self._device.synchronize()
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._rebind()
            self._device.synchronize()

    def _rebind(self):
        if self._comm is not None:
            self._lib.rf_channel_rebind(self._comm, 0)

    # ---- health and end ----

    def health(self):
        """The Error that launches met on the device, which replays of graphs cannot raise; or None. Does not wait."""
        if self._comm is None:
            return None
        health = rf_health()
        code = self._lib.rf_comm_check(self._comm, ctypes.byref(health)) or health.code
        return Error(code, self._lib.rf_strerror(code).decode(), health.culprit) if code else None

    def status(self):
        """The library's own account as a dict: plans and why, tactics not in use and why, calls by path."""
        if self._comm is None:
            return {"disabled": self.disabled}
        import json
        size = self._lib.rf_status_json(self._comm, None, 0) + 4096  # it may grow meanwhile
        text = ctypes.create_string_buffer(size)
        self._lib.rf_status_json(self._comm, text, size)
        return json.loads(text.value)

    def destroy(self, timeout=10):
        """Collective, in order, before the process groups go; graphs that hold calls of it have to be gone. Local and
        quick when it is disabled or called twice. A rank that does not come within `timeout` seconds is logged."""
        if self._comm is None:
            return
        err = rf_error()
        if self._lib.rf_comm_close(self._comm, int(min(max(timeout, 0), 86400) * 1000), ctypes.byref(err)):
            _log(None, 1, err.text)
        self._drop()
        self.disabled = "destroy() was called"

    def _drop(self):
        """Local: communicates with nobody, waits for nothing."""
        comm, store, self._comm, self._store = self._comm, self._store, None, None
        if comm is not None:
            self._lib.rf_comm_destroy(comm)
        if store is not None:
            self._lib.rf_store_close(store)

    def __del__(self, getpid=os.getpid):
        if getattr(self, "_comm", None) is not None and self._pid == getpid():  # a forked child's copy is the parent's
            self._drop()
