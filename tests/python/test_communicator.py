"""The communicator in worlds of processes, on the cpu backend."""
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from world import Tensor, oracle, run  # first: it finds rankfold
import rankfold

HIDDEN, SIZES = 64, (1, 4, 16)
PEER_GONE = [rankfold.RESULTS["E_PEER"], rankfold.RESULTS["E_TIMEOUT"]]


def ready(group, dtype="float32", sizes=SIZES, **more):
    comm = rankfold.Communicator(group, "cpu")
    if not comm.setup(HIDDEN, dtype, sizes, **more):
        raise AssertionError(comm.disabled)
    return comm


def numbers(group, count, factor=1):
    """Different on every rank, small and whole, and their sum over the group."""
    mine = [(index * factor + group.rank) % 8 for index in range(count)]
    return mine, [sum((index * factor + rank) % 8 for rank in range(group.world)) for index in range(count)]


def leave_the_network():
    unshare, new_network, new_user = ctypes.CDLL(None).unshare, 0x40000000, 0x10000000
    return not unshare(new_network) or not unshare(new_network | new_user)


class Sums(unittest.TestCase):
    def test_every_dtype_and_world_in_and_out_of_place(self):
        def rank(group):
            wrong = []
            for dtype in rankfold.DTYPES:
                comm = ready(group, dtype)
                for rows in (1, 2, 3, 4, 16):  # some are not prepared
                    mine, total = numbers(group, rows * HIDDEN, rows)
                    x, y = Tensor((rows, HIDDEN), dtype, mine), Tensor((rows, HIDDEN), dtype)
                    for out in (None, y, x):
                        result = comm.all_reduce(x, out)
                        if result.values() != total or result.shape != x.shape or out is not None and result is not out:
                            wrong.append((dtype, rows, out))
                comm.destroy()
            return wrong
        for world in (1, 2, 3):
            self.assertEqual(run(world, rank), [[]] * world)

    def test_the_bits_are_the_oracle_s(self):
        def values(rank):
            source = random.Random(rank)
            return Tensor((16, HIDDEN), "float32", [source.gauss(0, 1e3) for _ in range(16 * HIDDEN)])

        def rank(group):
            comm = ready(group)
            return comm.all_reduce(values(group.rank)).bits()
        right = oracle(rankfold.load(), [values(rank) for rank in range(3)], rankfold.F32)
        self.assertEqual(run(3, rank), [right] * 3)

    def test_more_sizes_can_be_prepared_and_only_up_to_the_capacity(self):
        def rank(group):
            comm = ready(group, sizes=[16])
            comm.prepare([2, 8])
            with self.assertRaises(rankfold.Error) as caught:
                comm.prepare([3, 17])
            rows = [plan["rows"] for plan in comm.status()["channels"][0]["plans"]]
            return sorted(rows), caught.exception.code
        self.assertEqual(run(2, rank), [([2, 8, 16], rankfold.RESULTS["E_CAPACITY"])] * 2)


class Refusals(unittest.TestCase):
    def test_should_use_is_false_and_all_reduce_says_why(self):
        refused = {
            "dtype": Tensor((4, HIDDEN), "bfloat16"),
            "int8": Tensor((4, HIDDEN), "int8"),
            "contiguous": Tensor((4, HIDDEN), contiguous=False),
            "cuda:0": Tensor((4, HIDDEN), device="cuda:0"),
            "more than": Tensor((17, HIDDEN)),
        }

        def rank(group):
            comm, wrong = ready(group), []
            for word, tensor in refused.items():
                with self.assertRaisesRegex(ValueError, word):
                    comm.all_reduce(tensor)
                with self.assertRaisesRegex(ValueError, word):
                    comm.all_reduce(Tensor((4, HIDDEN)), tensor)
                wrong += [word] if comm.should_use(tensor) else []
            with self.assertRaisesRegex(ValueError, "out has"):
                comm.all_reduce(Tensor((4, HIDDEN)), Tensor((2, HIDDEN)))
            wrong += [] if comm.should_use(Tensor((16, HIDDEN))) and comm.should_use(Tensor((5,))) else ["usable"]
            wrong += ["empty"] if comm.should_use(Tensor((0, HIDDEN))) else []
            return wrong
        self.assertEqual(run(2, rank), [[], []])

    def test_what_c_would_take_for_something_else(self):
        def rank(group):
            comm, x = ready(group), Tensor((1, HIDDEN))
            for word, call in (("stream is 'x'", lambda: comm.all_reduce(x, x, stream="x")),
                               ("a size is 0", lambda: comm.prepare([0])),
                               ("18446744073709551617 rows", lambda: comm.prepare([2**64 + 1]))):
                with self.assertRaisesRegex(ValueError, word):
                    call()
            with self.assertRaises(rankfold.Error) as caught:
                comm.prepare([2**20])
            comm.destroy(timeout=float("inf"))
            return caught.exception.code
        self.assertEqual(run(2, rank), [rankfold.RESULTS["E_CAPACITY"]] * 2)

    def test_overlapping_tensors_are_the_library_s_to_refuse(self):
        def rank(group):
            comm, x, y = ready(group), Tensor((4, HIDDEN)), Tensor((4, HIDDEN))
            with mock.patch.object(y, "data_ptr", lambda: x.data_ptr() + 4):
                with self.assertRaisesRegex(rankfold.Error, "4 bytes apart") as caught:
                    comm.all_reduce(x, y)
            return caught.exception.code
        self.assertEqual(run(2, rank), [rankfold.RESULTS["E_OVERLAP"]] * 2)

    def test_a_communicator_that_is_not_set_up_refuses(self):
        comm, x = rankfold.Communicator(None, "cuda"), Tensor((1, HIDDEN))
        self.assertFalse(comm.initialized or comm.should_use(x))
        self.assertRegex(comm.disabled, "setup")
        self.assertEqual(comm.status(), {"disabled": comm.disabled})
        with self.assertRaisesRegex(ValueError, "setup"):
            comm.all_reduce(x)
        with self.assertRaisesRegex(ValueError, "setup"):
            comm.prepare([1])
        self.assertIsNone(comm.health())
        with comm.capture():
            pass
        comm.destroy()


class Unanimous(unittest.TestCase):
    """One rank cannot: both say why, in the same words."""

    def verdict(self, pattern, rank_1=None, dies=(), flags=0, made=None, **arguments):
        """rank_1: what rank 1 does before it calls setup(); made, arguments: how it is made and set up there."""
        def rank(group):
            if group.rank == 1 and rank_1:
                rank_1(group)
            comm = rankfold.Communicator(group, "cpu", **{"flags": flags, **(made or {} if group.rank == 1 else {})})
            call = {"hidden_dim": HIDDEN, "dtype": "float32", "capture_sizes": SIZES}
            done = comm.setup(**{**call, **(arguments if group.rank == 1 else {})})
            return done, comm.initialized, comm.should_use(Tensor((1, HIDDEN))), comm.disabled
        results = run(2, rank, dies)
        for result in results[:2 - len(dies)]:
            self.assertEqual(result[:3], (False, False, False))
            self.assertRegex(result[3], pattern)
            self.assertEqual(result, results[0])

    def test_wrong_arguments_of_one_rank(self):
        for pattern, arguments in (
                ("rank 1: hidden_dim is -3", {"hidden_dim": -3}),
                ("rank 1: hidden_dim is 4.5", {"hidden_dim": 4.5}),
                ("rank 1: dtype is torch.int8, expected .*bfloat16", {"dtype": "torch.int8"}),
                ("rank 1: a capture size is 0", {"capture_sizes": [4, 0]}),
                ("rank 1: capture_sizes is empty", {"capture_sizes": []}),
                ("rank 1: tune_seconds is -1", {"tune_seconds": -1}),
                ("rank 1: 'NoneType'", {"capture_sizes": None}),
                ("rank 1: dtype is ", {"dtype": "\udcff"}),  # no UTF-8
                ("rank 1: 1 rows of 18446744073709551624 elements", {"hidden_dim": 2**64 + 8, "capture_sizes": [1]})):
            with self.subTest(pattern):
                self.verdict(pattern, **arguments)

    def test_numbers_that_c_would_cut_down(self):
        for pattern, made in (("rank 1: deadline_ms is 4294967297", {"deadline_ms": 2**32 + 1}),
                              ("rank 1: deadline_ms is -1", {"deadline_ms": -1}),
                              ("rank 1: deadline_ms is 0.5", {"deadline_ms": 0.5}),
                              ("rank 1: flags is 4294967296", {"flags": 2**32})):
            with self.subTest(pattern):
                self.verdict(pattern, made=made)

    def test_a_cache_that_is_no_path(self):
        for cache, said in (("a\0b", "rank 0: tune_cache is 'a.x00b'"), ("", "rank 0: tune_cache is ''")):
            def rank(group):
                comm = rankfold.Communicator(group, "cpu")
                return comm.setup(HIDDEN, "float32", SIZES, tune_cache=cache), comm.disabled
            results = run(2, rank)
            self.assertFalse(results[0][0])
            self.assertRegex(results[0][1], said)
            self.assertEqual(results[0], results[1])

    def test_arguments_that_differ(self):
        for pattern, arguments in (
                ("disagree: .*x 128 float32.* on rank 1, .*x 64 float32.* on rank 0", {"hidden_dim": 128}),
                ("disagree: .*bfloat16.* on rank 1", {"dtype": "bfloat16"}),
                ("disagree: .*tune_seconds 1 on rank 1", {"tune_seconds": 1}),
                ("rank 1.*2 x 64|2 x 64.*rank 1", {"capture_sizes": [1, 2, 16]})):
            with self.subTest(pattern):
                self.verdict(pattern, **arguments)

    def test_a_failure_without_a_text(self):
        self.verdict(r"rank 1: MemoryError\(\)",
                     lambda _: mock.patch.object(rankfold, "load", side_effect=MemoryError).start())

    def test_a_group_that_gives_too_little(self):
        def rank(group):
            with mock.patch.object(group, "allgather", lambda *_: []):
                comm = rankfold.Communicator(group, "cpu")
                return comm.setup(HIDDEN, "float32", SIZES), comm.disabled
        reason = "the group failed: ValueError('allgather gave [] bytes, expected 1024 of each rank')"
        self.assertEqual(run(2, rank), [(False, reason)] * 2)

    def test_a_missing_library(self):
        def lose(_):
            os.environ["RANKFOLD_LIBRARY"] = "/nowhere/librankfold.so.0"
            rankfold.load.cache_clear()
        self.verdict("rank 1: /nowhere/librankfold.so.0 cannot be loaded", lose)

    def test_a_file_that_is_no_library(self):
        def spoil(_):
            os.environ["RANKFOLD_LIBRARY"] = __file__
            rankfold.load.cache_clear()
        self.verdict("rank 1: .*test_communicator.py cannot be loaded: ", spoil)

    def test_a_library_of_another_version(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        other = os.path.join(folder, "librankfold.so.0")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", other, "-"], check=True, text=True,
                       input="unsigned rf_version_number(void) { return 9900; }")

        def age(_):
            os.environ["RANKFOLD_LIBRARY"] = other
            rankfold.load.cache_clear()
        self.verdict("rank 1: .*has version number 9900, rankfold.py expects 100", age)

    def test_the_switch_on_one_rank(self):
        self.verdict("disabled by RANKFOLD_DISABLE=1", lambda _: os.environ.update(RANKFOLD_DISABLE="1"))

    def test_one_rank_has_not_opted_in(self):
        with mock.patch.dict(os.environ, RANKFOLD_DISABLE="0"):
            self.verdict("rank 1: .*not asked for: RANKFOLD_DISABLE=0 on every rank",
                         lambda _: os.environ.pop("RANKFOLD_DISABLE"), flags=rankfold.OPT_IN)

    def test_a_library_of_another_build(self):
        def rebuild(_):
            found, names = rankfold.packs(rankfold.CPU)
            rankfold.packs = lambda _: (found * 2, names)
        self.verdict("packs", rebuild)

    def test_a_rank_on_another_machine(self):
        """As near to one as a test comes: a network of its own; as another user, where that takes one."""
        if run(1, lambda _: leave_the_network()) != [True]:
            self.skipTest("no network of its own can be made here")
        self.verdict("network namespace|runs as user", lambda _: leave_the_network())

    def test_a_rank_that_dies_on_the_way(self):
        self.verdict("the group failed: Connection", lambda _: os.kill(os.getpid(), signal.SIGKILL), dies=(1,))

    def test_no_kernels_for_the_device(self):
        def rank(group):
            comm = rankfold.Communicator(group, "cuda:0")
            with mock.patch.dict(sys.modules, torch=mock.Mock()):
                comm.setup(HIDDEN, "float32", SIZES)
            return comm.disabled
        reason = "the library holds kernels for cpu only, none for cuda:0"
        self.assertEqual(run(2, rank), [reason] * 2)

    def test_a_device_of_no_kind(self):
        def rank(group):
            comm = rankfold.Communicator(group, "cpu" if group.rank else "tpu:0")
            comm.setup(HIDDEN, "float32", SIZES)
            return comm.disabled
        self.assertEqual(run(2, rank), ["rank 0: device is 'tpu:0', expected 'cpu', 'cuda' or 'cuda:N'"] * 2)

    def test_it_can_be_tried_again(self):
        def rank(group):
            comm = rankfold.Communicator(group, "cpu")
            first = comm.setup(HIDDEN, "float32", [] if group.rank else SIZES)
            return first, comm.setup(HIDDEN, "float32", SIZES), comm.disabled
        self.assertEqual(run(2, rank), [(False, True, None)] * 2)


class Baseline(unittest.TestCase):
    def test_where_it_was_measured_faster_nothing_is_done(self):
        def faster(_comm, _channel, _count, _dtype, _mode, plan):
            plan._obj.fallback = 1
            return 0

        def rank(group):
            comm, x, y = ready(group), Tensor((1, HIDDEN)), Tensor((1, HIDDEN))
            comm._lib = mock.Mock(wraps=comm._lib)
            comm._lib.rf_plan_query.side_effect = faster
            comm._lib.rf_all_reduce.return_value = rankfold.RESULTS["FALLBACK"]
            return comm.should_use(x), comm.all_reduce(x, y), y.values() == [7] * HIDDEN
        self.assertEqual(run(2, rank), [(False, None, True)] * 2)

    def test_one_rank_without_nccl_and_none_has_it(self):
        class Lazy:
            def _get_backend(self, _):
                return mock.Mock(_comm_ptr=lambda: 0)

        def rank(group):
            comm = rankfold.Communicator(group, "cpu", nccl=None if group.rank else Lazy())
            with mock.patch.dict(sys.modules, torch=mock.Mock()):
                comm.setup(HIDDEN, "float32", SIZES)
            return comm.disabled, comm.status()["baseline"]["reason"]
        (disabled, reason), other = run(2, rank)
        self.assertEqual((disabled, reason), other)
        self.assertIsNone(disabled)
        self.assertRegex(reason, "rank 0: the process group has no NCCL communicator before its first collective")

    def test_an_address_in_any_form(self):
        backend = mock.Mock(_comm_ptr=lambda: 48)
        with mock.patch.dict(sys.modules, torch=mock.Mock()):
            found = [rankfold.nccl_address(nccl) for nccl in (None, 16, ctypes.c_void_p(32), mock.Mock(
                _get_backend=lambda _: backend))]
        self.assertEqual(found, [None, 16, 32, 48])


class Streams(unittest.TestCase):
    """cpu streams stand in for CUDA's: they capture, and a channel belongs to one of them."""

    def setUp(self):
        self.lib = rankfold.load()

    def stream(self):
        stream = ctypes.c_void_p()
        rankfold.check(self.lib.rf_cpu_stream_create(ctypes.byref(stream), None), rankfold.rf_error())
        return stream

    def record(self, stream, body):
        """The graph of what body() launches; the capture ends also when it raises."""
        graph = ctypes.c_void_p()
        self.assertEqual(self.lib.rf_cpu_capture_begin(stream), 0)
        try:
            body()
        finally:
            self.assertEqual(self.lib.rf_cpu_capture_end(stream, ctypes.byref(graph)), 0)
        return graph

    def test_graphs_are_captured_between_eager_calls_and_replayed(self):
        def rank(group):
            comm, main, side = ready(group), self.stream(), self.stream()
            x, y = Tensor((4, HIDDEN)), Tensor((4, HIDDEN))

            def call(stream):
                comm.all_reduce(x, y, stream=stream.value)
            call(main)
            self.lib.rf_cpu_stream_synchronize(main)
            with self.assertRaisesRegex(rankfold.Error, "belongs to stream") as caught:
                call(side)
            self.assertEqual(caught.exception.code, rankfold.RESULTS["E_STREAM"])
            with comm.capture():
                call(side)  # a warm-up run
                self.assertEqual(self.lib.rf_cpu_stream_synchronize(side), 0)
                graph = self.record(side, lambda: call(side))
            call(main)
            self.assertEqual(self.lib.rf_cpu_stream_synchronize(main), 0)
            wrong = 0
            for turn in range(5):
                mine, total = numbers(group, 4 * HIDDEN, turn)
                x.data[:] = Tensor((4, HIDDEN), values=mine).data
                self.lib.rf_cpu_graph_launch(graph, main)
                self.lib.rf_cpu_stream_synchronize(main)
                wrong += y.values() != total
                group.barrier()
            health = comm.health()
            group.barrier()
            return wrong, health
        self.assertEqual(run(2, rank), [(0, None)] * 2)

    def test_a_body_that_raises_gives_the_channel_back(self):
        def rank(group):
            comm, main, side = ready(group), self.stream(), self.stream()
            mine, total = numbers(group, HIDDEN)
            x, y = Tensor((1, HIDDEN), values=mine), Tensor((1, HIDDEN))

            def fail():
                comm.all_reduce(x, y, stream=side.value)
                raise KeyError("of the body")
            comm.all_reduce(x, y, stream=main.value)
            with self.assertRaisesRegex(KeyError, "of the body"), comm.capture():
                self.record(side, fail)
            comm.all_reduce(x, y, stream=main.value)
            self.lib.rf_cpu_stream_synchronize(main)
            with self.assertRaisesRegex(rankfold.Error, "belongs to stream"):  # and it is bound again
                comm.all_reduce(x, y, stream=side.value)
            return y.values() == total
        self.assertEqual(run(2, rank), [True] * 2)


class Ends(unittest.TestCase):
    def test_destroy_twice_then_setup_again(self):
        def rank(group):
            comm, x = ready(group), Tensor((1, HIDDEN))
            with self.assertRaisesRegex(ValueError, "already"):
                comm.setup(HIDDEN, "float32", SIZES)
            comm.destroy()
            comm.destroy()
            gone = comm.initialized, comm.should_use(x), comm.disabled
            return gone, comm.setup(HIDDEN, "float32", SIZES), comm.should_use(x)
        self.assertEqual(run(2, rank), [((False, False, "destroy() was called"), True, True)] * 2)

    def test_a_rank_that_dies_is_named(self):
        def rank(group):
            comm = ready(group)
            comm.all_reduce(Tensor((1, HIDDEN)))
            if group.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            with self.assertRaisesRegex(rankfold.Error, "rank 1") as caught:
                comm.all_reduce(Tensor((1, HIDDEN)))
            error, health = caught.exception, comm.health()
            with self.assertLogs("rankfold", "WARNING") as logged:
                comm.destroy(timeout=2)
            return error.code in PEER_GONE, error.rank, health.code in PEER_GONE, "rank 1" in logged.output[0]
        with mock.patch.dict(os.environ, RANKFOLD_DEADLINE_MS="5000"):
            self.assertEqual(run(2, rank, dies=(1,))[0], (True, 1, True, True))

    def test_a_forked_child_leaves_its_parent_s_alone(self):
        def rank(group):
            comm = ready(group)
            child = os.fork()
            if not child:
                comm.__del__()
                os._exit(0)
            os.waitpid(child, 0)
            mine, total = numbers(group, HIDDEN)
            return comm.all_reduce(Tensor((1, HIDDEN), values=mine)).values() == total
        self.assertEqual(run(2, rank), [True] * 2)


class Import(unittest.TestCase):
    def test_it_loads_neither_torch_nor_the_library(self):
        program = ("import sys; import rankfold; comm = rankfold.Communicator(None, 'cuda:0')\n"
                   "print(sorted(name for name in ('torch', 'numpy', 'logging', 'json') if name in sys.modules),"
                   "      rankfold.load.cache_info().currsize)")
        environment = {**os.environ, "PYTHONPATH": rankfold.HERE, "RANKFOLD_LIBRARY": "/nowhere"}
        said = subprocess.run([sys.executable, "-S", "-B", "-c", program], env=environment, text=True,
                              stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(said.split(), ["[]", "0"])

    def test_children_of_a_parent_that_loaded_everything_work(self):
        kept = rankfold.Communicator(None, "cpu"), rankfold.load(), rankfold.packs(rankfold.CPU)
        self.assertTrue(all(kept))

        def rank(group):
            mine, total = numbers(group, HIDDEN)
            return ready(group).all_reduce(Tensor((1, HIDDEN), values=mine)).values() == total
        self.assertEqual(run(2, rank), [True] * 2)


if __name__ == "__main__":
    unittest.main()
