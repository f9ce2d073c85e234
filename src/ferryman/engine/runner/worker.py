"""Files by which a process talks to who has started it: a step may close them, or all that it finds."""

from __future__ import annotations

import contextlib
import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Descriptors:
    """Some open files, by their numbers. One that was closed may be another file by now."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._known = {number: _identity(number) for number in numbers}

    @classmethod
    def of_worker(cls) -> Descriptors:
        """Return the descriptors by which Spark's Python worker answers the JVM; none where there is no such worker."""
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


# Modules beside a program: workers find them where the driver has found them, or get them by value.
#
# A worker starts in a folder of its own choice, and knows nothing of the folder of the program, or of its zip.


class ImportPath(NamedTuple):
    """Folders and zips of ``sys.path`` that no Python has by itself, absolute, in their order."""

    first: tuple[str, ...]
    """Before the modules that come with Python."""
    last: tuple[str, ...]
    """After them."""

    @classmethod
    def of_driver(cls) -> ImportPath:
        """Return the driver's current import path; a program may change it."""
        first: list[str] = []
        last: list[str] = []
        seen_python = False
        for each in map(os.path.abspath, sys.path):
            if each == _stdlib():
                seen_python = True
            elif not each.startswith(_installed()) and not _is_pyspark(each):
                (last if seen_python else first).append(each)
        return cls(tuple(first), tuple(last))

    def follow(self) -> None:
        """In a worker: what is there on this machine is searched as the driver does. Once for each path."""
        _follow(self)


@functools.lru_cache(maxsize=4)
def _follow(path: ImportPath) -> None:
    first = [each for each in path.first if os.path.exists(each)]
    last = [each for each in path.last if each not in sys.path and os.path.exists(each)]
    sys.path[:] = [*first, *(each for each in sys.path if os.path.abspath(each) not in first), *last]


@functools.cache
def _stdlib() -> str:
    return os.path.abspath(sysconfig.get_path("stdlib"))


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), site.getusersitepackages()]
    version = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return tuple({*map(os.path.abspath, folders), os.path.join(os.path.dirname(_stdlib()), version)})


def _is_pyspark(path: str) -> bool:
    """Workers have their own."""
    return path.endswith(".zip") and Path(path).name.startswith(("pyspark", "py4j-"))
