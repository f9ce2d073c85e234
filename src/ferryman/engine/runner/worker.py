"""Python workers: the descriptors by which they answer, which a step may close, and their import path."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Descriptors:
    """Open files by their descriptors. After a close, the same descriptor may be another file."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._known = {number: _identity(number) for number in numbers}

    @classmethod
    def of_worker(cls) -> Descriptors:
        """Return the descriptors by which Spark's Python worker answers the JVM; none where there is no such worker."""
        numbers = set()
        frame = sys._getframe()
        while (frame := frame.f_back) is not None:  # type: ignore[assignment]
            if str(frame.f_globals.get("__name__", "")).startswith("pyspark."):
                for name in ("infile", "outfile"):
                    try:
                        numbers.add(frame.f_locals[name].fileno())
                    except (KeyError, AttributeError, OSError, ValueError):
                        continue
        return cls(numbers)

    def are_intact(self) -> bool:
        """Return whether they are still the same open files."""
        return all(_identity(number) == known for number, known in self._known.items())

    def exit_unless_intact(self) -> None:
        """End this process if it cannot answer any more: its answer might be written into any other file."""
        if not self.are_intact():
            os._exit(CLOSED_DESCRIPTORS)


@contextlib.contextmanager
def check_descriptors() -> Iterator[None]:
    """End a Spark worker after its task if it cannot answer any more; the death is then handled like any other."""
    descriptors = Descriptors.of_worker()
    try:
        yield
    finally:
        descriptors.exit_unless_intact()


@functools.cache
def tune_process() -> None:
    """Tune a process that runs tasks, once, when its modules are loaded.

    PySpark collects garbage after each task, which takes 60 ms for all modules, so they are frozen. Arrow's own
    allocator returns memory and gets it cleared again for each file, which takes a sixth of the time of delivering.
    """
    import pyarrow as pa  # the driver loads this module before it needs Arrow

    gc.collect()
    gc.freeze()
    pa.set_memory_pool(pa.system_memory_pool())


CLOSED_DESCRIPTORS = 9
"""Exit code of a process whose step has closed its descriptors: EBADF."""


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Import path: workers find modules beside a program where the driver has found them.
#
# A worker starts in a folder of its own choice, and does not know the folder of the program, or its zip.


class ImportPath(NamedTuple):
    """Folders and zips of ``sys.path`` that a program has added, absolute, in their order."""

    first: tuple[str, ...]
    """Before the modules that come with Python."""
    last: tuple[str, ...]
    """After them."""

    @classmethod
    def of_driver(cls) -> ImportPath:
        """Return the driver's current import path, which a program may change."""
        first: list[str] = []
        last: list[str] = []
        seen_python = False
        for each in map(os.path.abspath, sys.path):
            if each == _stdlib():
                seen_python = True
            elif not each.startswith(_installed()) and not _is_pyspark(each):
                (last if seen_python else first).append(each)
        return cls(tuple(first), tuple(last))

    def apply(self) -> None:
        """Add what exists on this machine to a worker's import path, once for each path."""
        _apply_path(self)


@functools.lru_cache(maxsize=4)
def _apply_path(path: ImportPath) -> None:
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
    """Return whether this is a zip of PySpark, of which workers have their own."""
    return path.endswith(".zip") and Path(path).name.startswith(("pyspark", "py4j-"))
