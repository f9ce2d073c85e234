"""What a process on an executor sees, and what of it differs from what the driver knows."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import platform
import secrets
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

import ferryman
from ferryman.engine.preflight.facts import PROOF, DriverView, Read, Written, names_in
from ferryman.errors import FerrymanError, message_of
from ferryman.storage import files

_OTHER: Final = "it is another folder: is the share mounted?"


class ExecutorView(NamedTuple):
    """One process, and what it sees.

    Attributes:
        names: of the folders that sources read, path -> names.
        proofs: files that it has made for the driver to find, and to remove.
        differences: what is not as the driver knows it, a sentence each.
    """

    process: str
    python: str
    names: dict[str, tuple[str, ...]]
    proofs: tuple[str, ...]
    differences: tuple[str, ...]


class Differs(NamedTuple):
    """Instead of an answer: the task was not run, for this process sees something else than the driver."""

    why: tuple[str, ...]


def look(facts: DriverView) -> ExecutorView:
    """What this process sees. It leaves a file in each folder that is written to, for the driver to find."""
    names = {}
    for each in facts.read:
        with contextlib.suppress(OSError):
            names[each.path] = names_in(each.path) or ()
    found = differences(facts)
    return ExecutorView(process(), platform.python_version(), names, () if found else tuple(_proofs(facts)), found)


@functools.lru_cache(maxsize=16)
def differences(facts: DriverView) -> tuple[str, ...]:
    """What is not as the driver knows it. A process looks once."""
    return tuple(_differences(facts))


def process() -> str:
    """This process, for messages: machine, number, user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.geteuid())
    return f"{socket.gethostname()} (process {os.getpid()}, user {user})"


def _differences(facts: DriverView) -> Iterator[str]:
    if ferryman.__version__ != facts.version:
        yield (
            f"{process()} has Ferryman {ferryman.__version__}, and the driver on {facts.host} {facts.version}. "
            "Install the same on both."
        )
    for written in facts.written:
        if (why := _unlike(written)) is not None:
            yield _differs(written.path, written.what, facts.host, why)
    for read in facts.read:
        if (why := _missing(read)) is not None:
            yield _differs(read.path, read.what, facts.host, why)


def _differs(path: str, what: str, host: str, why: str) -> str:
    return f"{path} ({what}) is there on {host}, and on {process()} {why}. Every machine must see the same there."


def _unlike(folder: Written) -> str | None:
    """Why this is not the driver's folder; None: it is."""
    place = files.path_of(folder.path)
    try:
        return None if files.read(place / folder.proof) == folder.proof.encode() else _OTHER
    except FileNotFoundError:
        return _OTHER if files.is_folder(place) else "there is no such folder"
    except (OSError, FerrymanError) as e:
        return f"it cannot be read: {message_of(e)}"


def _missing(read: Read) -> str | None:
    """Why this cannot be what the driver reads; None: it may be. What comes and goes meanwhile is nothing."""
    try:
        names = names_in(read.path)
    except FileNotFoundError:
        return "there is no such folder or file"
    except OSError as e:
        return f"it cannot be read: {message_of(e)}"
    if read.names and not names:
        return "it is empty: is the share mounted?"
    return None


def _proofs(facts: DriverView) -> Iterator[str]:
    for folder in facts.written:
        name = f"{PROOF}{secrets.token_hex(16)}"
        files.publish(files.path_of(folder.path) / name, b"")
        yield f"{folder.path}/{name}"
