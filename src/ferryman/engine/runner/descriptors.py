"""Files by which a process talks to who has started it: a step may close them, or all that it finds."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator


class Descriptors:
    """Some open files, by their numbers. One that was closed may be another file by now."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._known = {number: _identity(number) for number in numbers}

    @classmethod
    def of_worker(cls) -> Descriptors:
        """Those of Spark's Python worker, by which it answers the JVM; none where there is no such worker."""
        found = set()
        frame = sys._getframe()
        while (frame := frame.f_back) is not None:  # type: ignore[assignment]
            if str(frame.f_globals.get("__name__", "")).startswith("pyspark."):
                for name in ("infile", "outfile"):
                    try:
                        found.add(frame.f_locals[name].fileno())
                    except (KeyError, AttributeError, OSError, ValueError):
                        continue
        return cls(found)

    def intact(self) -> bool:
        """Are they what they were?"""
        return all(_identity(number) == known for number, known in self._known.items())

    def end_unless_intact(self) -> None:
        """End this process if it cannot answer any more; what it would write might end up in any other file."""
        if not self.intact():
            os._exit(CLOSED)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Around a task of Spark: a worker that cannot answer any more dies, and the death is looked into."""
    descriptors = Descriptors.of_worker()
    try:
        yield
    finally:
        descriptors.end_unless_intact()


CLOSED = 9
"""Exit code of a process whose step has closed what it answers by: EBADF."""


def _identity(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino
