"""What machines have that steps may need: a graphics card, a licence. Each machine says it in its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Final

VARIABLE: Final = "FERRYMAN_HAS"
"""Names between commas, in the environment of an executor."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def names(given: Any) -> frozenset[Any]:
    """One name, several, or none; what is not a name is kept, for ``is_name`` to refuse."""
    if given is None:
        return frozenset()
    if isinstance(given, str) or not isinstance(given, Iterable):
        return frozenset([given])
    return frozenset(given)


def is_name(given: object) -> bool:
    """May something be called so? Letters, digits and ``-_.``, such as "gpu"."""
    return isinstance(given, str) and _NAME.match(given) is not None


def here() -> frozenset[str]:
    """What this machine says it has."""
    return frozenset(name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip()))


def listed(given: Iterable[str]) -> str:
    """Names as a message has them."""
    return " and ".join(sorted(given))
