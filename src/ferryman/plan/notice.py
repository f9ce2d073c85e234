"""Whom a plan tells of what goes wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from ferryman import limits, net

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """One that is notified.

    Attributes:
        to: an http or https URL, ``mailto:ADDRESS``, or a command line.
        secret: what posts to a URL are signed with; ``${NAME}`` in it, and in ``to``, is filled in from the
            environment when a digest is sent.
        timeout_s: seconds that sending a digest may take.
    """

    to: str
    secret: str | None = None
    timeout_s: float = limits.NOTIFY_TIMEOUT_S

    @property
    def kind(self) -> str:
        """``url``, ``mail`` or ``command``."""
        if self.to.lower().startswith(("http://", "https://", "${")):
            return "url"
        return "mail" if self.to.lower().startswith("mailto:") else "command"

    @property
    def shown(self) -> str:
        """Its address as it may be shown: without passwords."""
        match self.kind:
            case "url":
                return net.plain(self.to)
            case "mail":
                return self.to.partition("?")[0]
        return self.to.split()[0] if self.to.split() else self.to

    def findings(self) -> Iterator[str]:
        """Why it can never be told anything; each with what to do."""
        where = f"notify {self.shown!r}"
        scheme = _SCHEME.match(self.to)
        if not self.to.strip() or not self.to.isprintable():
            yield f"{where}: give a URL, mailto:ADDRESS or a command, on one line."
        elif self.kind == "url" and "${" not in self.to and not _is_url(self.to):
            yield f"{where}: this is not a URL: correct it."
        elif self.kind == "command" and scheme:
            yield f"{where}: {scheme[1]} is not known here: give an http or https URL, mailto:ADDRESS or a command."
        elif self.kind == "command" and not _is_command(self.to):
            yield f"{where}: a quote is not closed: correct the command."
        elif self.kind == "mail" and "@" not in self.shown:
            yield f"{where}: give an address, as in mailto:me@example.org."
        if self.secret is not None and (not self.secret or self.kind != "url"):
            yield f"{where}: a secret signs what is posted to a URL: leave it out, or give secret='${{HOOK_SECRET}}'."
        if not 0 < self.timeout_s <= limits.NOTIFY_TIMEOUT_MAX_S:
            yield (
                f"{where}: timeout_s={self.timeout_s!r}: give seconds above 0, at most "
                f"{limits.NOTIFY_TIMEOUT_MAX_S:g}: a run waits for it."
            )


def _is_url(text: str) -> bool:
    try:
        return bool(net.split(text)[1].hostname)
    except ValueError:
        return False


def _is_command(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False
