"""Decisions: where they come from, and that nobody else's tuning touches them."""
import contextlib
import ctypes
import os
import sqlite3
import tempfile
import unittest
from unittest import mock

from world import Tensor, run  # first: it finds rankfold
import rankfold

HIDDEN, SIZES, SECONDS = 64, (1, 16), 1


def ready(group, cache, seconds=0, sizes=SIZES):
    comm = rankfold.Communicator(group, "cpu")
    if not comm.setup(HIDDEN, "float32", sizes, tune_cache=cache, tune_seconds=seconds):
        raise AssertionError(comm.disabled)
    return comm


def finish(group, cache, sizes=SIZES):
    """As many sessions as it takes until all is decided."""
    while True:
        comm = ready(group, cache, SECONDS, sizes)
        unfinished = comm.tuned.unfinished
        comm.destroy()
        if not unfinished:
            return


def plans(comm):
    """What each prepared shape runs, and whether that was measured."""
    return sorted((plan["rows"], plan["variant"], plan["grid"], plan["rung"])
                  for plan in comm.status()["channels"][0]["plans"])


def measurements(path):
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM measurement").fetchone()[0]


def tune(comm, sizes, progress):
    """A tuning session of a comm with the caller's eyes in it: progress() is called in its midst."""
    lib, shapes, err = rankfold.load(), comm._shapes(sizes), rankfold.rf_error()
    see = rankfold.PROGRESS(lambda *_: progress())
    size = ctypes.sizeof(rankfold.rf_tune_options)
    options = rankfold.rf_tune_options(struct_size=size, budget_ms=1000, progress=see)
    rankfold.check(lib.rf_tune(comm._comm, 0, shapes, len(shapes), ctypes.byref(options), None, ctypes.byref(err)), err)


class Alone:
    """A group of one."""
    rank, world = 0, 1

    def allgather(self, data, _):
        return [data]


class Tuning(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.cache = os.path.join(self.folder, "ours.db")

    def test_what_was_measured_once_is_not_measured_again(self):
        def rank(group):
            found = []
            for seconds in (SECONDS, SECONDS, 0):
                if found:
                    finish(group, self.cache)
                comm = ready(group, self.cache, seconds)
                found.append((comm.tuned and (comm.tuned.shapes, comm.tuned.warm, comm.tuned.measured > 0), plans(comm)))
                comm.destroy()
            return found
        (first, second, third), other = run(2, rank)
        self.assertEqual([each[0] for each in (first, second, third)], [(2, 0, True), (2, 2, False), None])
        self.assertEqual(second[1], third[1])
        self.assertEqual({plan[3] for plan in third[1]}, {"measured here"})
        self.assertEqual(other, [first, second, third])

    def test_without_seconds_nothing_is_measured_or_written(self):
        def rank(group):
            return plans(ready(group, self.cache))
        result, other = run(2, rank)
        self.assertEqual(result, other)
        self.assertNotIn("measured here", {plan[3] for plan in result})
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_database_that_cannot_be_used_is_said_and_defaults_serve(self):
        with open(self.cache, "w", encoding="ascii") as file:
            file.write("not a database\n")

        def rank(group):
            with self.assertLogs("rankfold", "WARNING") if group.rank == 0 else contextlib.nullcontext() as logged:
                comm = ready(group, self.cache, SECONDS)
            use = comm.all_reduce(Tensor((1, HIDDEN))).values() == [14] * HIDDEN
            return use, "ours.db" in (comm.status()["store"]["warning"] if group.rank == 0 else logged or "ours.db")
        self.assertEqual(run(2, rank), [(True, True)] * 2)
        with open(self.cache, encoding="ascii") as file:
            self.assertEqual(file.read(), "not a database\n")

    def test_an_enclosing_tuning_context_of_other_code(self):
        """Other code tunes on its own, with another database and no group, while ours is used, prepared, and made."""
        def rank(group):
            finish(group, self.cache, sizes=(1, 4, 16))
            lib, may_profile, sums, made = rankfold.load(), set(), [], []
            ours = ready(group, self.cache)
            other = ready(Alone(), os.path.join(self.folder, f"other-{group.rank}.db"), SECONDS)
            before, count = plans(ours), measurements(self.cache)

            def inside():
                may_profile.add((lib.rf_can_profile(other._comm), lib.rf_can_profile(ours._comm)))
                if not sums:
                    sums.append(ours.all_reduce(Tensor((1, HIDDEN))).values() == [14] * HIDDEN)
                    ours.prepare([4])
                    made.append(ready(group, self.cache))  # as an engine's set-up within such a context would
            with mock.patch.dict(os.environ, RANKFOLD_DB=os.path.join(self.folder, "elsewhere.db")):
                tune(other, (2, 3), inside)
            return may_profile, sums, before, plans(ours), plans(made[0]), measurements(self.cache) - count
        for may_profile, sums, before, ours, made, measured in run(2, rank):
            self.assertEqual(may_profile, {(1, 0)})
            self.assertEqual(sums, [True])
            self.assertEqual([plan for plan in ours if plan[0] != 4], before)
            self.assertEqual({plan[3] for plan in ours}, {"measured here"})
            self.assertEqual(made, before)
            self.assertEqual(measured, 0)

    def test_a_session_of_our_own_may_measure(self):  # what the test before would see if it could
        seen = []
        comm = ready(Alone(), self.cache, SECONDS)
        tune(comm, (5,), lambda: seen.append(rankfold.load().rf_can_profile(comm._comm)))
        self.assertEqual(set(seen), {1})
        self.assertGreater(measurements(self.cache), 0)


if __name__ == "__main__":
    unittest.main()
