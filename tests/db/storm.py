"""storm.py FILL [SECONDS [SEED]]: processes that tune, merge, import, export, freeze, fold, check and explain one database at once,
from the moment on when there is none; some are killed at a random moment. What was told to be done is there in the end, the file
is sound, whatever was read is whole, and nothing is said but what is so. FILL makes databases to merge.

The seed fixes who does what for how long; how they meet is the machine's affair."""
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

RANKFOLD = os.path.abspath("generated/bin/rankfold")
FILL, SECONDS, SEED = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5, sys.argv[3] if len(sys.argv) > 3 else "1"
OTHERS, SHAPES, LIMIT = 3, ["f32:1x64", "f32:4x64", "f32:16x1024"], 90

# What may be said, and by whom, while others make the file or were killed in it.
ABSENT = r"there is no such file|is empty: no database yet|no decision to freeze"
JOURNAL = r"a killed writer left a journal; `rankfold db check` puts it right|locked by another process"
ALLOWED = {"check": ABSENT, "fold": ABSENT, "export": ABSENT, "freeze": ABSENT, "explain": ABSENT + "|" + JOURNAL}

tmp = tempfile.mkdtemp(prefix="storm.", dir=os.environ.get("TMPDIR"))
shared = os.path.join(tmp, "shared.db")
faults, done, said = [], [], {}
counts = {"ran": 0, "killed": 0}
lock = threading.Lock()


def other(number, suffix):
    return os.path.join(tmp, f"other{number}.{suffix}")


def somebody_writes():
    """Waits until a transaction is about to be committed, by whomever, but not for long."""
    for _ in range(200):
        if os.path.exists(shared + "-journal"):
            return
        time.sleep(0.0005)


def run(*arguments, kill_after=None, aimed=False):
    """(exit code, stdout, stderr); None if it was killed."""
    process = subprocess.Popen([RANKFOLD, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    if aimed:
        somebody_writes()
    try:
        out, err = process.communicate(timeout=kill_after or LIMIT)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        if kill_after:
            return None
        return -9, "", f"nothing came of it in {LIMIT} s"


def whole_export(text):
    """An export that can be imported, and is what is exported of that."""
    copy = os.path.join(tmp, f"copy{threading.get_ident()}")
    with open(copy + ".sql", "w") as file:
        file.write(text)
    got = run("db", "import", "--db", copy + ".db", copy + ".sql")
    again = run("db", "export", "--db", copy + ".db")
    for suffix in ".sql", ".db":
        if os.path.exists(copy + suffix):
            os.remove(copy + suffix)
    return None if got[0] == 0 and again[1] == text else f"an export that is not whole: {got[2] or 'another text'}"


def whole_table(text):
    """A C table whose rows all have their environments."""
    missing = set(re.findall(r",(ENV_\w+),", text)) - set(re.findall(r"^#define (ENV_\w+) ", text, re.M))
    rows = len(re.findall(r"^    \{\{0x", text, re.M)), int((re.findall(r", (\d+), (?:rows|0)\};\n$", text) or [-1])[0])
    return f"a table without {missing}" if missing else None if rows[0] == rows[1] else f"a table of {rows} rows"


COMMANDS = {
    "tune": (lambda pick: ["tune", "-n", "2", "--budget", "1", "--force", "--db", shared, "--shapes", pick(SHAPES)], None),
    "merge": (lambda pick: ["db", "merge", "--db", shared, other(pick(range(OTHERS)), "db")], None),
    "import": (lambda pick: ["db", "import", "--db", shared, other(pick(range(OTHERS)), "sql")], None),
    "export": (lambda pick: ["db", "export", "--db", shared], whole_export),
    "freeze": (lambda pick: ["db", "freeze", "--db", shared, "frozen"], whole_table),
    "fold": (lambda pick: ["db", "fold", "--db", shared], None),
    "check": (lambda pick: ["db", "check", "--db", shared], None),
    "explain": (lambda pick: ["explain", "-n", "2", "--db", shared, pick(SHAPES)], None),
}


def judge(name, arguments, result):
    code, out, err = result
    lines = err.splitlines() if name != "tune" else [line for line in err.splitlines() if line.startswith("rankfold: ")]
    strange = [line for line in lines if not re.search(ALLOWED.get(name, "(?!)"), line)]
    fault = COMMANDS[name][1](out) if code == 0 and COMMANDS[name][1] else None
    with lock:
        for line in lines:
            line = line.replace(shared, "DB")
            said[line] = said.get(line, 0) + 1
        if fault or strange or (code and not lines):
            faults.append(f"{' '.join(arguments)}: exit code {code}: {fault or strange or 'not a word'}")
        if code == 0:
            done.append((name, arguments[-1]))


def worker(number, until):
    dice = random.Random(f"{SEED} {number}")
    while time.monotonic() < until:
        name = dice.choice(list(COMMANDS))
        arguments = COMMANDS[name][0](dice.choice)
        # Every second one is to be killed: early, when it opens or makes the file; when it, or another, commits; at any time.
        aimed, kill_after = dice.choice([(False, None)] * 3 + [(False, dice.uniform(0.001, 0.03)), (True, dice.uniform(0.0005, 0.004)),
                                                               (False, dice.uniform(0.001, 1))])
        result = run(*arguments, kill_after=kill_after, aimed=aimed)
        with lock:
            counts["ran"] += 1
            counts["killed"] += result is None
        if result:
            judge(name, arguments, result)


def expect(good, text):
    if not good:
        faults.append(text)


for i in range(OTHERS):
    subprocess.run([FILL, other(i, "db")], check=True)
    with open(other(i, "sql"), "w") as sql:
        sql.write(run("db", "export", "--db", other(i, "db"))[1])

workers = [threading.Thread(target=worker, args=(i, time.monotonic() + SECONDS)) for i in range(6)]
for thread in workers:
    thread.start()
for thread in workers:
    thread.join()

# What was done is there.
first = run("db", "check", "--db", shared)
expect(first[0] == 0, f"check: {first[2]}")
connection = sqlite3.connect(shared)
expect(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "integrity_check")
tuned = sum(name == "tune" for name, _ in done)
finished = connection.execute("SELECT count(*) FROM campaign JOIN finish USING(campaign) WHERE toolchain <> 'cc 12.2 -O2'"
                              ).fetchone()[0]
connection.close()
expect(finished >= tuned, f"{tuned} sessions ended well, {finished} are there")
for i in range(OTHERS):
    for name, suffix in ("merge", "db"), ("import", "sql"):
        if (name, other(i, suffix)) in done:
            again = run("db", name, "--db", shared, other(i, suffix))
            expect(again[1].endswith(": 0 new facts\n"), f"{name} {i}: {again[1]}{again[2]}")
run("db", "fold", "--db", shared)  # who writes next removes the journal of one who was killed before it said anything
left = sorted(name for name in os.listdir(tmp) if name.startswith("shared.db") and name != "shared.db")
expect(not left, f"left behind: {left}")

for line, n in sorted(said.items()):
    print(f"{n:5} {line}")
kinds = {name: sum(n == name for n, _ in done) for name in COMMANDS}
print(f"seed {SEED}: {counts['ran']} commands, {counts['killed']} of them killed; done: {kinds}")
for fault in faults[:20]:
    print(f"FAILED: {fault}")
print(f"{len(faults)} failures")
if not faults:
    for name in os.listdir(tmp):
        os.remove(os.path.join(tmp, name))
    os.rmdir(tmp)
sys.exit(bool(faults))
