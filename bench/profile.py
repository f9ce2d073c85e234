"""Profiles of runs: samples of the Python processes by function (py-spy), CPU of the JVM by thread (/proc).

    python -m bench profile null sqlite small_files --documents 200000

Profiles a run in a warm session, or a whole command. Shares exclude samples in which a process was idle.
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
from bench.harness import ROOT, empty_folder, print_progress, spark
from bench.processes import processes
from ferryman import Plan, run

RATE = 100
"""Samples a second."""
TOP = 22
WAIT_S = 0.2


class Sampled(NamedTuple):
    """Samples of one profile.

    ``python``: samples by kind of process and stack, outermost function first; ``cpu_s``: CPU seconds by kind;
    ``threads``: CPU seconds of the JVM's threads by name without numbers.
    """

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
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ferryman-bench-", ignore_cleanup_errors=True) as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for line in options.lines or ("null", "sqlite", "small_files"):
            print_progress(f"{line} …")
            count = options.files if line == "small_files" else options.documents
            sampled = profile_command(folder, count) if line == "small_files" else profile_run(line, folder, count)
            print_profile(f"{line}, {count} documents", sampled)
    return 0


def profile_run(line: str, folder: Path, count: int) -> Sampled:
    """Profile a run in a child process, which warms up and then waits for the profiler."""
    command = [sys.executable, "-m", "bench.profile", line, str(folder), str(count)]
    data.table(folder / f"rows-{count}", count)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "warm\n":
            raise SystemExit(f"{command}: ended before it was warm")
        raw = empty_folder(folder / "profile") / "samples"
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


def profile_command(folder: Path, count: int) -> Sampled:
    """Profile a whole command, from its start."""
    corpus = data.small_files(folder / f"files-{count}", count)
    place = empty_folder(folder / "profile")
    (place / "plan.py").write_text(
        small_files.PLAN.format(folder=str(corpus), detect="fingerprint", out=place / "out.db")
    )
    command = [sys.executable, "-m", "ferryman.cli", "run", str(place / "plan.py"), "--state", str(place / "state")]
    spy = _spy(place / "samples", "--", *command)
    cpu: dict[str, float] = {}
    threads: Counter[str] = Counter()
    while spy.poll() is None:
        now, jvm = _cpu(spy.pid)
        now.pop("driver")  # this is py-spy; the driver is its child
        cpu.update({kind: max(s, cpu.get(kind, 0.0)) for kind, s in now.items()})
        threads |= jvm
        try:
            spy.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            continue
    return Sampled(read(place / "samples"), cpu, threads)


def _spy(raw: Path, *target: str) -> subprocess.Popen[str]:
    """Start py-spy; return once it samples, or has failed."""
    spy = environment.python().with_name("py-spy")
    spy_options = ["--subprocesses", "--function", "--rate", str(RATE), "--format", "raw", "--output", str(raw)]
    began = subprocess.Popen(
        [spy, "record", *spy_options, *target], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **QUIET},
    )  # fmt: skip
    assert began.stdout is not None
    for line in began.stdout:
        if "Sampling" in line:
            break
    return began


def read(raw: Path) -> dict[str, Counter[tuple[str, ...]]]:
    """Read py-spy's raw format: a line for each stack, functions separated by semicolons, and the number of samples.

    Processes are frames, too: a worker's stack begins with the driver, the JVM, the daemon and the worker.
    """
    stacks: dict[str, Counter[tuple[str, ...]]] = {}
    for line in raw.read_text().splitlines():
        stack, _, times = line.rpartition(" ")
        kind = "worker" if "pyspark.daemon" in stack else "driver"
        frames = [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]
        if frames:
            stacks.setdefault(kind, Counter())[tuple(frames)] += int(times)
    return stacks


def shares(stacks: Counter[tuple[str, ...]]) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Return functions with their shares of the time, largest first: without and with the functions they call."""
    alone, within = Counter[str](), Counter[str]()
    for stack, times in stacks.items():
        alone[stack[-1]] += times
        for frame in set(stack):
            within[frame] += times
    total = stacks.total()
    return tuple([(name, times / total) for name, times in each.most_common()] for each in (alone, within))  # type: ignore[return-value]


def print_profile(title: str, sampled: Sampled) -> None:
    print(f"\n## {title}\n\nCPU: {', '.join(f'{kind} {s:.1f} s' for kind, s in sampled.cpu_s.items())}")
    for kind, stacks in sampled.python.items():
        print(f"\n### {kind}: {stacks.total()} samples\n\n| function | alone | with all that it calls |\n|---|---|---|")
        alone, within = (dict(each) for each in shares(stacks))
        names = list(dict.fromkeys([*list(alone)[:TOP], *[name for name in within if "ferryman" in name][:TOP]]))
        for name in sorted(names, key=lambda name: -within[name]):
            print(f"| `{name.replace('|', '/')}` | {alone.get(name, 0.0):.1%} | {within[name]:.1%} |")
    total = sampled.threads.total() or 1.0
    print("\n### JVM\n\n| threads | share | CPU |\n|---|---|---|")
    for name, s in sampled.threads.most_common(8):
        print(f"| {name} | {s / total:.0%} | {s:.1f} s |")


def _cpu(root: int) -> tuple[dict[str, float], Counter[str]]:
    """Return CPU seconds so far by kind of process below the root, and by thread of the JVM."""
    tick, cpu_s, threads = os.sysconf("SC_CLK_TCK"), dict.fromkeys(("driver", "jvm", "worker"), 0.0), Counter[str]()
    for pid, stat in processes(root).items():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        kind = "driver" if pid == root else "jvm" if name == "java" else "worker"
        cpu_s[kind] += sum(stat[10:12]) / tick
        if kind == "jvm":
            threads += Counter(dict(_threads(pid, tick)))
    return cpu_s, threads


def _threads(pid: int, tick: int) -> Iterator[tuple[str, float]]:
    ticks_by_name = Counter[str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            _, _, rest = (text := (task / "stat").read_text()).rpartition(")")
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")].rstrip("0123456789-# ")
        ticks_by_name[name] += sum(int(field) for field in rest.split()[11:13])
    for name, ticks in ticks_by_name.items():
        yield name, ticks / tick


def _child(line: str, folder: Path, count: int) -> None:
    """Run the plan to warm up, print "warm", wait for a line on stdin, and run it again."""
    rows = data.table(folder / f"rows-{count}", count)

    def once() -> None:
        place = folder / "profiled"
        if line != "rescan":
            empty_folder(place)
        run(plans(line, rows, place), state=place, spark=spark())

    empty_folder(folder / "profiled")
    once()
    print("warm", flush=True)
    sys.stdin.readline()
    once()
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
