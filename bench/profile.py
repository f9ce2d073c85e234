"""Where the time goes: samples of the Python processes by function (py-spy), CPU of the JVM by thread (/proc).

    python -m bench profile null sqlite small_files --documents 200000

A run in a warm session, or a whole command. Shares are of the samples of a kind of process in which it was not idle.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import branches, data, environment, small_files, table_to_null, table_to_sqlite
from bench.command import QUIET
from bench.harness import ROOT, anew, say, spark
from bench.processes import processes
from ferryman import Plan, run

RATE = 100
"""Samples a second."""
TOP = 22
WAIT_S = 0.2


class Sampled(NamedTuple):
    """``python``: samples by kind of process and stack, outermost function first; ``cpu_s``: by kind; ``threads``: CPU
    seconds of the JVM's threads by their names without numbers."""

    python: dict[str, Counter[tuple[str, ...]]]
    cpu_s: dict[str, float]
    threads: Counter[str]


def plans(name: str, rows: Path, place: Path) -> Plan:
    if name == "sqlite":
        return table_to_sqlite.plan(rows, place / "out.db")
    if name == "branches":
        return branches.branching(rows)
    if name == "arrow":
        return table_to_null.plan(rows, table_to_null.for_batch, arrow=True)
    return table_to_null.plan(rows)


LINES = ("null", "arrow", "sqlite", "branches", "rescan", "small_files")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench profile", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"which ones: {', '.join(LINES)}")
    parser.add_argument("--documents", type=int, default=500_000)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ferryman-bench-", ignore_cleanup_errors=True) as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for line in asked.lines or ("null", "sqlite", "small_files"):
            say(f"{line} …")
            count = asked.files if line == "small_files" else asked.documents
            found = of_command(folder, count) if line == "small_files" else of_run(line, folder, count)
            print_profile(f"{line}, {count} documents", found)
    return 0


def of_run(line: str, folder: Path, count: int) -> Sampled:
    """In a process that has warmed up, and waits until somebody watches."""
    command = [sys.executable, "-m", "bench.profile", line, str(folder), str(count)]
    data.table(folder / f"rows-{count}", count)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "warm\n":
            raise SystemExit(f"{command}: ended before it was warm")
        raw = anew(folder / "profile") / "samples"
        spy = _spy(raw, "--pid", str(child.pid))
        before = _cpu(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        if child.stdout.readline() != "done\n":
            raise SystemExit(f"{command}: failed")
        after = _cpu(child.pid)
        child.stdin.close()
        spy.wait()
    return Sampled(read(raw), *(Counter(late) - Counter(early) for late, early in zip(after, before, strict=True)))


def of_command(folder: Path, count: int) -> Sampled:
    """A whole command, from its start."""
    corpus = data.small_files(folder / f"files-{count}", count)
    place = anew(folder / "profile")
    (place / "plan.py").write_text(
        small_files.PLAN.format(folder=str(corpus), detect="fingerprint", out=place / "out.db")
    )
    command = [sys.executable, "-m", "ferryman.cli", "run", str(place / "plan.py"), "--state", str(place / "state")]
    spy = _spy(place / "samples", "--", *command)
    cpu: dict[str, float] = {}
    threads: Counter[str] = Counter()
    while spy.poll() is None:
        now, jvm = _cpu(spy.pid)
        now.pop("driver")  # that is py-spy; the driver is below it
        cpu.update({kind: max(s, cpu.get(kind, 0.0)) for kind, s in now.items()})
        threads |= jvm
        try:
            spy.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            continue
    return Sampled(read(place / "samples"), cpu, threads)


def _spy(raw: Path, *of: str) -> subprocess.Popen[str]:
    """Returns when it has begun, or failed."""
    spy = environment.python().with_name("py-spy")
    options = ["--subprocesses", "--function", "--rate", str(RATE), "--format", "raw", "--output", str(raw)]
    began = subprocess.Popen(
        [spy, "record", *options, *of], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **QUIET},
    )  # fmt: skip
    assert began.stdout is not None
    for line in began.stdout:
        if "Sampling" in line:
            break
    return began


def read(raw: Path) -> dict[str, Counter[tuple[str, ...]]]:
    """py-spy's raw format: a line a stack, functions with a semicolon between, and how often it was seen.

    Processes are frames, too: of a worker the driver, the JVM, the daemon and its own.
    """
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for line in raw.read_text().splitlines():
        stack, _, times = line.rpartition(" ")
        kind = "worker" if "pyspark.daemon" in stack else "driver"
        frames = [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]
        if frames:
            found.setdefault(kind, Counter())[tuple(frames)] += int(times)
    return found


def shares(stacks: Counter[tuple[str, ...]]) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Functions with their shares of the time: in them alone, and in them with all that they call; largest first."""
    alone, within = Counter[str](), Counter[str]()
    for stack, times in stacks.items():
        alone[stack[-1]] += times
        for frame in set(stack):
            within[frame] += times
    total = stacks.total()
    return tuple([(name, times / total) for name, times in each.most_common()] for each in (alone, within))  # type: ignore[return-value]


def print_profile(what: str, found: Sampled) -> None:
    print(f"\n## {what}\n\nCPU: {', '.join(f'{kind} {s:.1f} s' for kind, s in found.cpu_s.items())}")
    for kind, stacks in found.python.items():
        print(f"\n### {kind}: {stacks.total()} samples\n\n| function | alone | with all that it calls |\n|---|---|---|")
        alone, within = (dict(each) for each in shares(stacks))
        names = list(dict.fromkeys([*list(alone)[:TOP], *[name for name in within if "ferryman" in name][:TOP]]))
        for name in sorted(names, key=lambda name: -within[name]):
            print(f"| `{name.replace('|', '/')}` | {alone.get(name, 0.0):.1%} | {within[name]:.1%} |")
    total = found.threads.total() or 1.0
    print("\n### JVM\n\n| threads | share | CPU |\n|---|---|---|")
    for name, s in found.threads.most_common(8):
        print(f"| {name} | {s / total:.0%} | {s:.1f} s |")


def _cpu(root: int) -> tuple[dict[str, float], Counter[str]]:
    """CPU seconds so far: of each kind of process below the root, and of the JVM's threads."""
    tick, found, threads = os.sysconf("SC_CLK_TCK"), dict.fromkeys(("driver", "jvm", "worker"), 0.0), Counter[str]()
    for pid, stat in processes(root).items():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        kind = "driver" if pid == root else "jvm" if name == "java" else "worker"
        found[kind] += sum(stat[10:12]) / tick
        if kind == "jvm":
            threads += Counter(dict(_threads(pid, tick)))
    return found, threads


def _threads(pid: int, tick: int) -> Iterator[tuple[str, float]]:
    seen = Counter[str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            _, _, rest = (text := (task / "stat").read_text()).rpartition(")")
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")].rstrip("0123456789-# ")
        seen[name] += sum(int(field) for field in rest.split()[11:13])
    for name, ticks in seen.items():
        yield name, ticks / tick


def _child(line: str, folder: Path, count: int) -> None:
    """Warms up with the same plan, says so, waits, runs it."""
    rows = data.table(folder / f"rows-{count}", count)

    def once() -> None:
        place = folder / "profiled"
        if line != "rescan":
            anew(place)
        run(plans(line, rows, place), state=place, spark=spark())

    anew(folder / "profiled")
    once()
    print("warm", flush=True)
    sys.stdin.readline()
    once()
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
