"""Rounds of a proof: one fault each, until everything has been delivered in spite of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from ferryman.proof import child
from ferryman.proof.child import ChildJob, Observation, RunAnswer
from ferryman.proof.faults import KINDS, PlannedFault, took_effect
from ferryman.proof.sample import VERSIONS

_RUNS: Final = 8
"""Runs of one version of the sample after which it should be delivered."""

_SPARK_S: Final = 900.0
"""Seconds that a run on Spark may take."""

_ONE_THREAD: Final = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment of a process to fork from: without it numpy and Arrow start threads when they are loaded."""

_STOPPED: Final = -int(signal.SIGSTOP)


class Inconclusive(Exception):
    """Raised if a round shows nothing, neither that a rule holds nor that it is broken."""


class Violation(Exception):
    """Raised if a rule was broken while a round was played, such as that a second driver is kept out."""


@dataclass
class Played:
    """A round that was played to its end.

    Attributes:
        folder: of its state and twins.
        fault: what has happened in it; None: nothing.
        effect: whether the fault took effect.
        seen: state and twins at its end.
        runs: runs of the command that it took.
        repaired: deliveries that ``verify --repair`` has made due.
        spent_s: time that it took.
    """

    folder: Path
    fault: PlannedFault | None
    effect: bool = False
    seen: Observation | None = None
    runs: int = 0
    repaired: int = 0
    spent_s: float = 0.0
    messages: list[str] = field(default_factory=list)


class Processes:
    """The process that all runs are forked from, see ``proof.child``.

    Args:
        setup: file with the ``Setup``.
        hash_seed: Python's, which decides on the order of sets.
    """

    def __init__(self, setup: Path, hash_seed: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ferryman.proof.child", str(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, "PYTHONHASHSEED": str(hash_seed)},
            start_new_session=True,  # Ctrl-C is for the command
        )

    def run(self, job: ChildJob) -> int:
        """Run a job in a process of its own; returns how it ended."""
        return self._ask(msgspec.json.encode(job))

    def wake(self) -> int:
        """Let the process that stopped first go on, to its end."""
        return self._ask(child.WAKE)

    def orphan(self) -> int:
        """Kill the driver that stopped first; returns how many stopped workers it leaves."""
        return self._ask(child.ORPHAN)

    def wake_orphans(self) -> int:
        """Let stopped workers go on, to their end."""
        return self._ask(child.WAKE_ORPHANS)

    def kill_stopped(self) -> None:
        """Kill all that have stopped."""
        self._ask(child.KILL)

    def _ask(self, what: bytes) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(what + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Inconclusive("the process that runs are forked from has ended") from None
        line = self._process.stdout.readline()
        if not line:
            raise Inconclusive("the process that runs are forked from has ended")
        return int(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Round:
    """Plays one round.

    Args:
        processes: where its runs are forked from.
        folder: for its state and twins; it is made.
        fault: what happens in it; None: nothing.
        broken: rule of the protocol that is broken in all of its runs.
        base: copy of this very folder in which the first version has been delivered; None: there is none.
    """

    def __init__(
        self, processes: Processes, folder: Path, fault: PlannedFault | None, broken: str = "", base: Path | None = None
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._fault = fault
        self._broken = broken
        self._base = base
        self.played = Played(folder, fault)
        self._forks = fault is not None and KINDS[fault.kind].forks

    def play(self, *, records: bool = False) -> Played:
        """Run the plan with the round's fault until nothing is pending; return the final state of ledger and twins.

        Args:
            records: record the points that are reached; tasks run in processes of their own.

        Raises:
            Inconclusive: a process did not end in time, or the final state could not be read.
            Violation: a rule was broken during the round.
        """
        began = time.monotonic()
        shutil.rmtree(self._folder, ignore_errors=True)
        first = 0
        if self._base is not None and self._fault is not None and self._fault.version > 0:
            shutil.copytree(self._base, self._folder, symlinks=True)
            first = 1
        else:
            self._folder.mkdir(parents=True)
        try:
            for version in range(first, VERSIONS):
                if self._fault is not None and self._fault.version == version:
                    self._play_fault(self._fault)
                    if self._fault.kind == "away" and version + 1 < VERSIONS:
                        continue  # the next version comes while this one is still to be delivered
                    if self._fault.kind == "late":
                        version = VERSIONS - 1  # both have been delivered
                self._finish(version, records=records)
                if version == VERSIONS - 1:
                    break
            if self._fault is not None and self._fault.kind in ("tail", "holes"):
                self._heal(self._fault)
            self.played.seen = self._look()
        finally:
            self._processes.kill_stopped()
            if (self._folder / "scratch").exists():
                self._processes.run(ChildJob("drop", str(self._folder), answer="dropped.json"))
            self.played.spent_s = time.monotonic() - began
        self.played.effect = took_effect(self._folder)
        return self.played

    # -- runs --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Deliver the first version, to make a base of this folder."""
        self._folder.mkdir(parents=True)
        self._finish(0)

    def _run(self, version: int, **options: Any) -> tuple[int, RunAnswer]:
        """Run the command once; returns how its process ended, and its answer."""
        self.played.runs += 1
        return self._do(ChildJob("run", str(self._folder), version, broken=self._broken, **options))

    def _do(self, job: ChildJob) -> tuple[int, RunAnswer]:
        path = self._folder / job.answer
        path.unlink(missing_ok=True)
        code = self._wait(job)
        return code, self._answer(job.answer, code)

    def _wait(self, job: ChildJob) -> int:
        """Run a job; returns how its process ended."""
        code = self._processes.run(job)
        if code == child.TIMEOUT:
            raise Inconclusive(f"{job.verb}: it has not ended within {job.timeout_s:g} s")
        return code

    def _answer(self, name: str, code: int) -> RunAnswer:
        path = self._folder / name
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=RunAnswer)
        if code > 0:
            raise Violation(f"a run ended with a fault of the program: {self._last_output()}")
        return RunAnswer(error="killed")

    def _last_output(self) -> str:
        path = self._folder / "output.txt"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else "it said nothing"

    def _finish(self, version: int, *, records: bool = False) -> None:
        """Run until this version is delivered."""
        said = ""
        for _ in range(_RUNS):
            _, answer = self._run(version, records=records, forks=records)
            if not answer.error and answer.exit != 4:
                self.played.messages += answer.messages
                return
            said = answer.error or "; ".join(answer.messages[-2:])
            if answer.error and not answer.held:
                break
        raise Violation(f"version {version + 1} of the documents is not delivered in the end: {said}")

    def _look(self) -> Observation:
        job = ChildJob("look", str(self._folder), VERSIONS - 1, answer="seen.json")
        code = self._wait(job)
        path = self._folder / job.answer
        try:
            return msgspec.json.decode(path.read_bytes(), type=Observation)
        except (OSError, msgspec.ValidationError):
            error = self._answer(job.answer, code).error
            raise Inconclusive(f"twins or state could not be read: {error or self._last_output()}") from None

    # -- faults ------------------------------------------------------------------------------------

    def _play_fault(self, fault: PlannedFault) -> None:
        match fault.kind:
            case "second":
                self._second_driver(fault)
            case "overtaken":
                self._overtaken(fault)
            case "late":
                self._late_worker(fault)
            case "away":
                self._run(fault.version, fault=fault, waits=False)
            case "holes":
                self._run(fault.version, fault=fault)
                self._finish(fault.version)
                self._lose(fault)
            case "jvm" | "spark":
                self._run(fault.version, fault=fault, on_spark=True, timeout_s=_SPARK_S)
            case "driver" | "machine" | "disk":
                self._run(fault.version, fault=fault, forks=self._forks)
            case _:
                _, answer = self._run(fault.version, fault=fault, forks=self._forks)
                if answer.error:
                    raise Violation(f"the run ended: {answer.error}")

    def _second_driver(self, fault: PlannedFault) -> None:
        """Start a second driver while the first has stopped: it must be refused, and change nothing."""
        code, _ = self._run(fault.version, fault=fault)
        if code != _STOPPED:
            return
        _, second = self._run(fault.version, answer="second.json")
        if not second.held:
            raise Violation("a second driver was not refused, although the first one held the state")
        self._processes.wake()

    def _overtaken(self, fault: PlannedFault) -> None:
        """Start a second driver where locks do not work, and wake the first one when it is done."""
        code, _ = self._run(fault.version, fault=fault, unlocked=True)
        if code != _STOPPED:
            return
        _, second = self._run(fault.version, unlocked=True, answer="second.json")
        if second.error:
            raise Violation(f"the driver that took over could not go on: {second.error}")
        self._processes.wake()
        if not (first := self._answer("answer.json", 0)).lost and first.error:
            raise Violation(f"the driver that was overtaken ended otherwise: {first.error}")

    def _late_worker(self, fault: PlannedFault) -> None:
        """Stop a worker, kill its driver, let others do the work of both versions, and wake the worker."""
        code, _ = self._run(fault.version, fault=fault, forks=True)
        if code != _STOPPED or not self._processes.orphan():
            return
        for version in range(fault.version, VERSIONS):
            self._finish(version)
        if self._processes.wake_orphans():
            raise Inconclusive("the worker that was woken did not end")

    def _lose(self, fault: PlannedFault) -> None:
        _, answer = self._do(ChildJob("forget", str(self._folder), fault.version, fault, self._broken))
        if answer.error:
            raise Inconclusive(answer.error)

    def _heal(self, fault: PlannedFault) -> None:
        """Have ``verify --repair`` find and send again what a destination has lost."""
        last = VERSIONS - 1
        if fault.kind == "tail":
            self._lose(msgspec.structs.replace(fault, version=last))
        for _ in range(2):  # an older delivery may be found only when the newer one is back
            _, found = self._do(
                ChildJob("verify", str(self._folder), last, broken=self._broken, answer="verified.json")
            )
            if found.error:
                raise Inconclusive(f"verify: {found.error}")
            self.played.repaired += found.repaired
            if found.exit == 0:
                break
            self._finish(last)
        _, found = self._do(ChildJob("verify", str(self._folder), last, broken=self._broken, answer="verified.json"))
        if found.exit == 3:
            raise Violation(f"verify --repair did not bring back what was lost: {'; '.join(found.messages[:3])}")
