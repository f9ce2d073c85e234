"""Errors of the files below a folder, in words that say what to do."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from ferryman.errors import EngineError, FerrymanError, Misconfigured, Unavailable, plain_text
from ferryman.storage.files import disk_full, path_of
from ferryman.storage.objects import ObjectPath

_C = TypeVar("_C")
_P = ParamSpec("_P")
_R = TypeVar("_R")

_PASSING: Final = (
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.ENOENT,
)
"""A disk in trouble, too many open files; or the folder was removed, which ``check`` makes again."""

_REFUSED: Final = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
"""The path is none that one may read or write here, until somebody changes that."""


_OF_THE_DISK: Final = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextmanager
def explained(folder: Path | ObjectPath) -> Iterator[None]:
    """Errors of the file system inside come out as ``TransientError`` or ``PermanentError``, about the whole folder."""
    try:
        yield
    except OSError as e:
        why = f"{folder}: {e.strerror or e}"
        if disk_full(e) or e.errno in _PASSING:
            raise Unavailable(f"{why}. It is tried again.") from e
        raise Misconfigured(f"{why}. Make it a folder that can be written, then run again.") from e


@contextmanager
def told(where: object) -> Iterator[None]:
    """Errors of the file system inside come out in words, see ``in_words``: for whoever calls Ferryman."""
    try:
        yield
    except Exception as e:
        if (said := in_words(where, e)) is e:
            raise
        raise said from e


def in_words(where: object, error: Exception) -> Exception:
    """What to do about an error of the file system or the disk; any other one itself.

    Args:
        where: named where the error names no path.
    """
    if isinstance(error, FerrymanError):
        return error
    path = os.fsdecode(name) if isinstance(name := getattr(error, "filename", None), str | bytes) else where
    if disk_full(error):
        return EngineError(f"{path}: the disk is full. Nothing is lost: make room and do it again.")
    if not (isinstance(error, OSError) or _of_a_file(error)):
        return error
    why = f"{path}: {plain_text(getattr(error, 'strerror', None) or error)}"
    if getattr(error, "errno", None) in _REFUSED:
        return EngineError(f"{why}. Nothing is lost: make it one that can be read and written, then do it again.")
    return EngineError(f"{why}. Nothing is lost: fix it and do it again.")


def of_the_disk(error: BaseException) -> bool:
    """Did the disk refuse or fail, which no other process can be behind?"""
    return isinstance(error, OSError) and error.errno in _OF_THE_DISK


def _of_a_file(error: Exception) -> bool:
    """Is it DuckDB's error of a file that it reads or spills into?"""
    duckdb = sys.modules.get("duckdb")  # who has not loaded it has no error of it
    return duckdb is not None and isinstance(error, duckdb.IOException)


def told_calls(where: Callable[[Any], object]) -> Callable[[type[_C]], type[_C]]:
    """Make all public methods and properties of a class, and its ``__init__``, tell errors of files in words.

    Args:
        where: of an object, the folder that it is about.
    """

    def wrapped(method: Callable[..., _R]) -> Callable[..., _R]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> _R:
            try:
                return method(self, *args, **options)
            except FerrymanError:
                raise
            except Exception as e:
                if (said := in_words(where(self), e)) is e:
                    raise
                raise said from e

        return call

    def decorated(of: type[_C]) -> type[_C]:
        for name, member in list(vars(of).items()):
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(member, property):
                setattr(of, name, member.getter(wrapped(member.fget)) if member.fget else member)
            elif callable(member):
                setattr(of, name, wrapped(member))
        return of

    return decorated


def told_of_state(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make an operation on a state, the ``state=`` of its call, tell errors of files in words."""

    @functools.wraps(call)
    def outer(*args: _P.args, **options: _P.kwargs) -> _R:
        state: Any = options.get("state")
        with told(path_of(".ferryman" if state is None else state)):
            return call(*args, **options)

    return outer
