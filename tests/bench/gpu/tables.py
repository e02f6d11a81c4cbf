#!/usr/bin/env python3
"""Tables and a page of curves from what peers.py, links.cu and the tuner left in a folder.

    python3 tables.py FOLDER             prints the tables, writes FOLDER/page.html
    python3 tables.py FOLDER --readme    prints the tables as README.md has them

FOLDER is `results` of the results.tar.gz that `run` delivers. Of every target it says what was
reached and whether that is enough. Our time is "dep", tuned with dependent launch. A target of "not
slower" allows for the noise of A against A.

The measurements that we ship are that folder's hosts/*.sql, a file for each world, named as in
db/hosts/: copy it there, or add it to the one that is there (`rankfold db init`, `db import` of both, `db
export`), then `ninja product`. Of earlier builds of the kernels nothing is lost with a file that is
replaced, but for dtypes that were not measured again. The SKU has to have the variants that won.
"""
import glob
import html
import math
import os
import re
import sys

KIB, MIB = 1 << 10, 1 << 20
PEERS = {"NCCL": ("nccl", "LL", "LL128", "Simple", "tree", "torch"), "torch": ("sym1", "sym2"),
         "FlashInfer": ("fi", "fi-ar")}
NOT_SLOWER = 1.0
# Up to how many bytes, how many times as fast as NCCL, symmetric memory and FlashInfer.
TARGETS = {
    (2, "peer"): [(64 * KIB, 5, 3.3, 1.2), (512 * KIB, 3.3, 2, 1.1), (2 * MIB, 3, 1.5, 1), (4 * MIB, 2, 1.3, 1),
                  (16 * MIB, 1.4, 1.1, 1), (64 * MIB, 1.1, 1.1, 1)],
    (4, "peer"): [(64 * KIB, 5.8, 3.3, 1.2), (512 * KIB, 3.6, 2, 1.08), (2 * MIB, 2.4, 1.45, 1), (4 * MIB, 2, 1.3, 1),
                  (16 * MIB, 1.2, 1.1, 1), (64 * MIB, 1.05, 1.1, 1)],
    (2, "host"): [(16 * KIB, 4.4), (64 * KIB, 3.6), (256 * KIB, 3), (MIB, 2), (2 * MIB, 1.6), (64 * MIB, 1.4)],
    (4, "host"): [(16 * KIB, 4.5), (64 * KIB, 3), (512 * KIB, 2.8), (MIB, 2), (2 * MIB, 1.6), (64 * MIB, 1.3)],
}
FLOOR_MOST, FLOOR_RATIO = 2 * MIB, 1.6
# What the throw-away of the design page took on such machines, in us, by bytes, and with dependent launch.
SOME = [2 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB]
THROW_AWAY = {
    (2, "peer"): ([1.99, 2.24, 2.38, 2.43, 2.66, 3.07, 3.85, 5.35, 14.8, 51.5],
                  [1.65, 1.84, 1.99, 2.11, 2.31, 2.71, 3.47]),
    (4, "peer"): ([2.34, 2.49, 2.75, 3.05, 3.64, 4.35, 5.15, 7.70, 21.3, 77.7],
                  [1.97, 2.14, 2.43, 2.70, 3.29, 4.38, 6.62]),
    (2, "host"): ([2.87, 3.42, 4.25, 5.30, 7.59, 13.2, 25.4, 48.8, 192, 797], []),
    (4, "host"): ([4.06, 4.47, 6.06, 8.17, 11.6, 17.8, 32.8, 61.6, 249, 1271], []),
}


def bytes_text(size):
    return f"{size // MIB} Mi" if size >= MIB else f"{size // KIB} Ki"


class Results:
    """times[world, transport, column][bytes][contender] = (median, p99, right, note)"""

    def __init__(self, folder):
        self.times, self.facts, self.links = {}, [], {}
        for path in sorted(glob.glob(f"{folder}/peers-*.csv")):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    self.add(line.rstrip("\n"))
        if os.path.exists(f"{folder}/links.csv"):
            with open(f"{folder}/links.csv", encoding="ascii") as file:
                for line in file:
                    name, gpus, value = line.split(",")
                    self.links[name, int(gpus)] = float(value)

    def add(self, line):
        if line.startswith("#"):
            self.facts.append(line[2:])
            return
        fields = line.split(",", 9)
        if len(fields) < 10:
            return  # cut short
        world, transport, column, size, name, _, median, p99, right, note = fields
        sizes = self.times.setdefault((int(world), transport, column), {})
        sizes.setdefault(int(size), {})[name] = (float(median), float(p99), right == "ok", note)

    def floor(self, world, size):
        """Host-staged, in us: crossings, and bytes at the rate of both directions at once."""
        rate = self.links.get(("both-llc", world)) or self.links.get(("both-host", world))
        trip = self.links.get(("trip-host", 2))
        if not rate or not trip:
            return None
        one_shot = trip / 2 + (world - 1) * size / rate / 1e3
        two_shot = trip + max(1, 2 * (world - 1) / world) * size / rate / 1e3
        return self.links.get(("node", 1), 0) + min(one_shot, two_shot)


def best_of(times, names):
    """The fastest right one's (median, name), or None."""
    right = [(times[name][0], name) for name in names if name in times and times[name][2]]
    return min(right) if right else None


def noise_of(times, name):
    if name in times and name + "2" in times:
        return abs(times[name + "2"][0] / times[name][0] - 1)
    return 0.0


def targets_at(key, size):
    for most, *ratios in TARGETS.get(key, []):
        if size <= most:
            return dict(zip(PEERS, ratios))
    return {}


def verdict(ratio, target, noise):
    enough = ratio >= target * (1 - noise) if target == NOT_SLOWER else ratio >= target
    return "yes" if enough else "NO"


def table(results, key, out):
    """Every size against every peer. Returns how many targets are met, and of how many."""
    world, transport, column = key
    met = of = 0
    ours, floored = ("dep", "seq"), transport == "host" and column == "chain"
    out(f"\n## {world} ranks, {transport}, {column}: us a call, median (p99)\n")
    out("| bytes | dep | A/A % | seq | A/A % |" + (" floor | x floor |" if floored else "")
        + "".join(f" {peer} best | x | target | met |" for peer in PEERS if transport == "peer" or peer == "NCCL")
        + (" products alone |" if column == "between" else ""))
    out("|---" * (5 + 2 * floored + 4 * (1 if transport == "host" else 3) + (column == "between")) + "|")
    for size, times in sorted(results.times[key].items()):
        wrong = [name for name, t in times.items() if not t[2]]
        row = f"| {bytes_text(size)} |"
        for name in ours:
            row += f" {times[name][0]:.2f} ({times[name][1]:.2f}) | {100 * noise_of(times, name):.1f} |" \
                if name in times else " - | - |"
        mine = best_of(times, ours[:1])
        bare = times["none"][0] if column == "between" and "none" in times else 0
        floor = results.floor(world, size)
        if floored:
            row += f" {floor:.2f} | {mine[0] / floor:.2f} |" if floor and mine else " - | - |"
            if floor and mine and size <= FLOOR_MOST:
                of += 1
                met += mine[0] <= FLOOR_RATIO * floor
        goals = targets_at((world, transport), size) if column == "chain" else {}
        for peer, names in PEERS.items():
            if transport == "host" and peer != "NCCL":
                continue
            theirs = best_of(times, names)
            if not theirs or not mine:
                row += f" {theirs[0]:.2f} {theirs[1]} | - | - | - |" if theirs else " - | - | - | - |"
                continue
            ratio = (theirs[0] - bare) / max(mine[0] - bare, 1e-3)
            row += f" {theirs[0]:.2f} {theirs[1]} | {ratio:.2f} |"
            target = goals.get(peer, NOT_SLOWER)
            answer = verdict(ratio, target, noise_of(times, "dep"))
            row += f" {target if target != NOT_SLOWER else 'not slower'} | {answer} |"
            of += 1
            met += answer == "yes"
        row += f" {bare:.2f} |" if bare else ""
        out(row + (f" WRONG: {' '.join(wrong)}" if wrong else ""))
    out(f"\n{met} of {of} met")
    never_slower(results, key, out)
    return met, of


def throw_away(results, key, out):
    """Ours against the figures of the design page, which are of another day."""
    figures = THROW_AWAY.get(key[:2])
    if not figures or key[2] != "chain":
        return
    out(f"\n## {key[0]} ranks, {key[1]}: the throw-away's figures in the design page\n")
    out("| bytes | seq | its | not slower | dep | its, with dependent launch | not slower |\n|---|---|---|---|---|---|---|")
    slower = []
    for i, size in enumerate(SOME):
        times, row = results.times[key].get(size, {}), f"| {bytes_text(size)} |"
        for name, its in zip(("seq", "dep"), figures):
            if name not in times or i >= len(its):
                row += f" {times[name][0]:.2f} | - | - |" if name in times else " - | - | - |"
                continue
            enough = times[name][0] <= its[i] * (1 + noise_of(times, name))
            row += f" {times[name][0]:.2f} | {its[i]:g} | {'yes' if enough else 'NO'} |"
            slower += [] if enough else [f"{name} {bytes_text(size)}"]
        out(row)
    out(f"\nnever slower than the throw-away: {'NO, at ' + ', '.join(slower) if slower else 'yes'}")


def never_slower(results, key, out):
    """Than any contender at any size, beyond the noise of A against A."""
    for name in ("dep", "seq"):
        slower, sizes = [], 0
        for size, times in sorted(results.times[key].items()):
            theirs = best_of(times, [n for names in PEERS.values() for n in names])
            if name in times and theirs:
                sizes += 1
                if not times[name][2] or times[name][0] > theirs[0] * (1 + noise_of(times, name)):
                    slower.append(f"{bytes_text(size)} ({theirs[1]}, {theirs[0] / times[name][0]:.2f}x)")
        if sizes:
            out(f"{name}: never slower than any of them at {sizes} sizes: "
                + (f"NO, at {', '.join(slower)}" if slower else "yes"))


def between_worlds(results, transport, out):
    """World 3 lies between worlds 2 and 4."""
    two, three, four = (results.times.get((w, transport, "chain"), {}) for w in (2, 3, 4))
    sizes = [s for s in sorted(three) if "dep" in three[s] and "dep" in two.get(s, {}) and "dep" in four.get(s, {})]
    if not sizes:
        return
    out(f"\n## World 3 between worlds 2 and 4, {transport}\n\n| bytes | 2 | 3 | 4 | between |\n|---|---|---|---|---|")
    for size in sizes:
        a, b, c = (w[size]["dep"][0] for w in (two, three, four))
        noise = max(noise_of(w[size], "dep") for w in (two, three, four))
        inside = min(a, c) * (1 - noise) <= b <= max(a, c) * (1 + noise)
        out(f"| {bytes_text(size)} | {a:.2f} | {b:.2f} | {c:.2f} | {'yes' if inside else 'NO'} |")


def contenders(results, key, out):
    """All medians, as measured."""
    world, transport, column = key
    names = []
    for times in results.times[key].values():
        names += [name for name in times if name not in names]
    out(f"\n## {world} ranks, {transport}, {column}: everything, median us\n")
    out("| bytes |" + "".join(f" {name} |" for name in names) + "\n|---" + "|---" * len(names) + "|")
    for size, times in sorted(results.times[key].items()):
        out(f"| {bytes_text(size)} |" + "".join(
            (f" {times[n][0]:.2f}{'' if times[n][2] else ' WRONG'} |" if n in times else " - |") for n in names))
    for name in ("dep", "seq", "fi", "fi-ar"):
        plans = [f"{bytes_text(s)} {t[name][3]}" for s, t in sorted(results.times[key].items()) if name in t]
        if plans and column == "chain":
            out(f"\n{name}: " + "; ".join(plans))


# ---- does specialisation pay? ----

KINDS = [("rank known over any", r"_own_seq$", r"_any_seq$"), ("dependent over plain", r"_dep$", r"_seq$"),
         ("ring over tags", r"_host_flag_", r"_host_tag_"), ("one-shot over two-shot", r"_os_", r"_ts_"),
         ("pull over push", r"_peer_flag_", r"_peer_nan_"), ("another algorithm", r"_h0_(?!os_|ts_)", r"_(os|ts)_"),
         ("unroll over u1", r"_u[2-8]_", r"_u1_")]


def sweeps(path, out):
    """Of every size the best of one kind of variant over the best of another, as the tuner saw them."""
    import sqlite3
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT rows * hidden * 2, variant, min(median_us) FROM measurements "
                          "WHERE outcome IN ('ok', 'dropped') AND median_us > 0 GROUP BY 1, 2 ORDER BY 1").fetchall()
    sizes = {}
    for size, name, median in rows:
        sizes.setdefault(size, {})[name] = median
    out(f"\n## {os.path.basename(path)}: time of the second kind over the first\n")
    out("| bytes |" + "".join(f" {kind[0]} |" for kind in KINDS) + "\n|---" + "|---" * len(KINDS) + "|")
    for size, medians in sizes.items():
        row = f"| {bytes_text(size)} |"
        for _, special, plain in KINDS:
            a, b = ([m for n, m in medians.items() if re.search(p, n)] for p in (special, plain))
            row += f" {min(b) / min(a):.3f} |" if a and b else " - |"
        out(row)


TAKEOVER = ["transports", "admits", "from_bytes", "to_bytes", "kind", "from_us", "to_us", "rival", "rival_us"]


def takeover(path, out):
    """Where one kind of tactic takes over from another, as the database says it."""
    import sqlite3
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        rows = db.execute(f"SELECT {', '.join(TAKEOVER)} FROM takeover WHERE dtype = 'bf16' AND mode = 'graph'").fetchall()
    out(f"\n## {os.path.basename(path)}: what takes over where\n\n| {' | '.join(TAKEOVER)} |\n{'|---' * len(TAKEOVER)}|")
    for row in rows:
        texts = [bytes_text(v) if "bytes" in name else "" if v is None else str(v) for name, v in zip(TAKEOVER, row)]
        out(f"| {' | '.join(texts)} |")


# ---- README.md ----

def driver(folder):
    """As nvidia-smi said it."""
    try:
        with open(f"{folder}/facts.log", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^NVIDIA [^,]*, ([0-9.]+)", file.read(), re.M)
    except OSError:
        found = None
    return found.group(1) if found else "unknown"


def fact_of(results, world, transport):
    pattern = re.compile(rf"{world} x (?:NVIDIA )?(.*), {transport}, torch ([0-9.]*).*, NCCL ([0-9.]*), "
                         r"FlashInfer (\S*), (\d+) rounds")
    return next((m.groups() for m in map(pattern.match, results.facts) if m), ("?", "?", "?", "?", "?"))


def readme(results, folder, out):
    for key in sorted(results.times, key=lambda k: (k[1] != "peer", k[0])):
        world, transport, column = key
        if column != "chain":
            continue
        peer = transport == "peer"
        gpu, torch, nccl, flashinfer, rounds = fact_of(results, world, transport)
        out(f"\n**{world} x {gpu}, {'peer access, multicast off' if peer else 'no peer access (NCCL_P2P_DISABLE=1)'}** - "
            f"driver {driver(folder)}, NCCL {nccl}" + (f", torch {torch}, FlashInfer {flashinfer}" if peer else "")
            + f"; CUDA graphs, bf16, us a call, max over ranks, median of {rounds} interleaved rounds, every sum checked.\n")
        names = {"NCCL": PEERS["NCCL"], **({"torch": PEERS["torch"], "FlashInfer": PEERS["FlashInfer"]} if peer else {})}
        names = {n: v for n, v in names.items() if any(best_of(t, v) for t in results.times[key].values())}
        head = ["bytes", "Rankfold", "A/A", "dependent", "A/A", *names, *(f"{n} / dependent" for n in names)]
        head += [] if peer else ["floor", "dependent / floor"]
        out(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
        for size, times in sorted(results.times[key].items()):
            best = [best_of(times, v) for v in names.values()]
            row = [bytes_text(size)]
            row += [f"{times[n][0]:.2f}" if n in times and times[n][2] else "-" for n in ("seq", "seq2", "dep", "dep2")]
            row += [f"{b[0]:.2f}" if b else "-" for b in best]
            mine = best_of(times, ("dep",))
            row += [f"{b[0] / mine[0]:.2f}" if b and mine else "-" for b in best]
            floor = None if peer else results.floor(world, size)
            if not peer:
                row += [f"{floor:.2f}", f"{mine[0] / floor:.2f}"] if floor and mine else ["-", "-"]
            out(f"| {' | '.join(row)} |")


# ---- the page ----

COLOURS = ["#c00", "#e66", "#06c", "#2a2", "#a5a", "#f80", "#888", "#0aa"]
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 420, 60, 40


def curve_page(results, tables, path):
    with open(path, "w", encoding="utf-8") as page:
        page.write("<!DOCTYPE html><html lang=en><meta charset=utf-8><title>Rankfold and its peers</title>"
                   "<style>body{font:15px/1.4 sans-serif;margin:2em auto;max-width:90em}pre{font-size:12px}</style>\n"
                   "<h1>Rankfold and its peers</h1>\n")
        for fact in results.facts:
            if fact != "complete" and not fact.startswith("{"):
                page.write(f"<p>{html.escape(fact)}</p>\n")
        for key, sizes in sorted(results.times.items()):
            page.write(f"<h2>{key[0]} ranks, {key[1]}, {key[2]}</h2>\n" + drawing(results, key, sizes))
        page.write(f"<pre>{html.escape(tables)}</pre></html>\n")


def lines_of(results, key, sizes):
    """What is drawn: (title, [(bytes, us)])."""
    groups = {"Rankfold, dependent launch": ("dep",), "Rankfold": ("seq",), "NCCL": PEERS["NCCL"],
              "torch symmetric memory": PEERS["torch"], "FlashInfer PCIe-IPC": ("fi",),
              "FlashInfer vLLM-style": ("fi-ar",), "products alone": ("none",)}
    for title, names in groups.items():
        points = [(size, best_of(times, names)) for size, times in sorted(sizes.items())]
        points = [(size, best[0]) for size, best in points if best]
        if points:
            yield title, points
    if key[1] == "host" and key[2] == "chain":
        points = [(size, results.floor(key[0], size)) for size in sorted(sizes)]
        if points and points[0][1]:
            yield "floor", points


def drawing(results, key, sizes):
    lines = list(lines_of(results, key, sizes))
    every = [us for _, points in lines for _, us in points]
    if not every:
        return ""
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    first, last = math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1)

    def at(size, us):
        x = LEFT + (math.log2(size) - first) / (last - first) * (WIDTH - LEFT - 10)
        y = HEIGHT - BOTTOM - (math.log10(us) - low) / (high - low) * (HEIGHT - BOTTOM - 10)
        return f"{x:.1f},{y:.1f}"

    svg = [f"<svg width={WIDTH + 220} height={HEIGHT} font-family=sans-serif font-size=12>"]
    for power in range(low, high):
        for step in (1, 2, 5, 10):
            y = at(min(sizes), step * 10.0 ** power).split(",")[1]
            svg.append(f'<path d="M{LEFT},{y} H{WIDTH - 10}" stroke="#ddd"/>'
                       f'<text x={LEFT - 6} y={y} text-anchor=end>{step * 10.0 ** power:g}</text>')
    for size in sorted(sizes):
        x = at(size, 10.0 ** low).split(",")[0]
        svg.append(f'<path d="M{x},10 V{HEIGHT - BOTTOM}" stroke="#eee"/>'
                   f"<text x={x} y={HEIGHT - 22} text-anchor=middle font-size=10>{bytes_text(size)}</text>")
    svg.append(f"<text x={LEFT} y={HEIGHT - 4}>bytes; microseconds a call</text>")
    for i, (title, points) in enumerate(lines):
        path = " ".join(at(size, us) for size, us in points)
        svg.append(f'<polyline points="{path}" fill=none stroke="{COLOURS[i]}" stroke-width=2 />'
                   f'<text x={WIDTH} y={20 + 18 * i} fill="{COLOURS[i]}">{title}</text>')
    return "\n".join(svg) + "</svg>\n"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--readme"]):
        print(__doc__)
        return 2
    folder, text = sys.argv[1], []

    def out(line):
        text.append(line)

    results = Results(folder)
    if sys.argv[2:]:
        readme(results, folder, print)
        return 0
    for fact in results.facts:
        if fact != "complete":
            out(fact[:400])
    if results.links:
        out("links: " + ", ".join(f"{name} ({gpus}) {value:g}" for (name, gpus), value in sorted(results.links.items())))
    met = of = 0
    for key in sorted(results.times):
        m, n = table(results, key, out)
        met, of = met + m, of + n
        throw_away(results, key, out)
    for transport in ("peer", "host"):
        between_worlds(results, transport, out)
    for key in sorted(results.times):
        contenders(results, key, out)
    for path in sorted(glob.glob(f"{folder}/w*-*.db")):
        try:
            if not os.path.exists(path[:-3] + "-nccl.db"):  # else that one says more
                takeover(path, out)
            if not path.endswith("-nccl.db"):
                sweeps(path, out)
        except Exception as error:  # no sqlite3 in this Python, or no database
            out(f"{path}: {error}")
    out(f"\nin all {met} of {of} met")
    print("\n".join(text))
    curve_page(results, "\n".join(text), f"{folder}/page.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
