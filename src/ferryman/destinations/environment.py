"""Secrets from the environment: ``${NAME}`` in a destination's arguments, filled in where it is used."""

from __future__ import annotations

import os
import re
from typing import Final

from ferryman.errors import Misconfigured

_NAME: Final = re.compile(r"\$\{(\w+)\}")


def filled(text: str, where: str) -> str:
    """``text`` with each ``${NAME}`` replaced by that variable of this process's environment, stripped.

    Call it in ``check`` and ``open``: what is filled in is then never pickled, shown or stored.

    Args:
        where: begins the error's message.

    Raises:
        Misconfigured: a variable is not set, or holds a line break; its value is not shown.
    """

    def value(found: re.Match[str]) -> str:
        value = os.environ.get(found[1], "").strip()
        if not value:
            raise Misconfigured(
                f"{where}: the environment variable {found[1]} is not set. Set it for the driver and for the workers, "
                "then run again.",
            )
        if not value.isprintable():
            raise Misconfigured(
                f"{where}: the environment variable {found[1]} holds a line break or another control character. "
                "Set it to one line, then run again.",
            )
        return value

    return _NAME.sub(value, text)


def names(text: str) -> list[str]:
    """The variables that a text asks for."""
    return _NAME.findall(text)
