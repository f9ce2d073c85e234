"""Every durable step of the protocol by name, and the means to kill a process right there.

Code calls ``crash.point("commit.files")`` between two durable writes. In normal runs ``point`` does nothing: it is one
call of an empty function. A test arms one point (in this process with ``arm``, in subprocesses with the environment
variable ``FERRYMAN_CRASH=name`` or ``name:3`` for the third pass over it), and the process kills itself there with
SIGKILL, which nothing can catch. The crash test is parametrized over ``POINTS``: a point that is never reached fails.

This module imports nothing of Ferryman, so that everything may import it.
"""

from __future__ import annotations

import os
import signal
from typing import Final

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"

POINTS: Final[dict[str, str]] = {}
"""Name of each point -> where it stands (driver or executor)."""

ENVIRONMENT: Final = "FERRYMAN_CRASH"

_armed: dict[str, int] = {}
_seen_file: str | None = None


def arm(spec: str, seen_file: str | None = None) -> None:
    """Arm ``name`` or ``name:n`` (die at the n-th pass). With ``seen_file`` the kill happens once over all processes:
    the file is made at the kill, and where it exists the point stays silent."""
    global _seen_file
    name, _, count = spec.partition(":")
    if name not in POINTS:
        raise KeyError(f"no crash point {name!r}; there are {', '.join(POINTS)}")
    _armed[name] = int(count or 1)
    _seen_file = seen_file


def disarm() -> None:
    """No point kills any more in this process."""
    _armed.clear()


def point(name: str) -> None:
    """A place between two durable steps; kills this process if it is armed."""
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    left = _armed.get(name)
    if left is None:
        return
    if left > 1:
        _armed[name] = left - 1
        return
    if _seen_file is not None:
        try:
            os.close(os.open(_seen_file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get(ENVIRONMENT):  # pragma: no cover - only in processes that are about to die
    _spec, _, _file = os.environ[ENVIRONMENT].partition("@")
    POINTS.setdefault(_spec.partition(":")[0], DRIVER)
    arm(_spec, _file or None)
