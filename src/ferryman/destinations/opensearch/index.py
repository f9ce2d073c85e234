"""The index: made as the plan wants it, or checked whether it is."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from ferryman.destinations.http import Answer
from ferryman.destinations.opensearch.answers import refusal
from ferryman.destinations.opensearch.body import OBJECT
from ferryman.errors import Misconfigured

GC_DELETES_S: Final = 600
"""How long an index that we make remembers deletes. An older upsert that comes while a delete is remembered is refused;
nothing of ours is sent a minute late. Ten times that, for requests that wait in the server, at some 100 bytes of its
memory a delete."""

GC_DELETES_LEAST_S: Final = 60
"""The server's default: as long as a write may take."""

OWN_FIELDS: Final[dict[str, Any]] = {
    "dynamic": False,
    "properties": {
        "hash": {"type": "keyword"},
        "sequence": {"type": "long"},
        "origin": {"type": "keyword"},
        "parent": {"type": "keyword"},
        "source": {"type": "keyword"},
        "version": {"type": "keyword"},
        "route": {"type": "keyword"},
    },
}

_UNITS: Final = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXISTS: Final = "resource_already_exists_exception"

_log = logging.getLogger("ferryman")


class Ask(Protocol):
    """A request whose answer is whole, and no refusal but those that are waited for."""

    def __call__(self, method: str, path: str, body: Any = None, *, expected: tuple[int, ...] = ()) -> Answer: ...


class Index:
    """An index by its name, or by an alias that means one."""

    def __init__(
        self, ask: Ask, name: str, mappings: Mapping[str, Any], settings: Mapping[str, Any], *, shown: str
    ) -> None:
        self._ask = ask
        self._path = f"/{quote(name, safe='')}"
        self._mappings = wanted(mappings)
        self._settings = {"index.gc_deletes": f"{GC_DELETES_S}s", **settings}
        self._shown = shown

    def prepare(self) -> None:
        """Make it, or look whether it is fit; fields that it lacks are added. Two drivers may do so at once.

        Raises:
            Misconfigured: its mappings contradict the plan's, or the name means something else.
        """
        found = self._find()
        if found is None:
            found = self._make() or self._find()
        if found is not None:
            self._check(found)

    def _find(self) -> dict[str, Any] | None:
        answer = self._ask("GET", f"{self._path}?flat_settings=true", expected=(404,))
        if answer.status == 404:
            return None
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        return found

    def _make(self) -> dict[str, Any] | None:
        """None: it is there now, made by us or by somebody who was faster; then what they made is to be checked."""
        body = {"settings": self._settings, "mappings": self._mappings}
        answer = self._ask("PUT", self._path, body, expected=(400,))
        if answer.status == 400 and _EXISTS not in (why := refusal(answer.body)):
            raise Misconfigured(
                f"{self._shown} cannot be made: {why}. Correct index=, mappings= or settings=.",
            )
        return None

    def _check(self, found: dict[str, Any]) -> None:
        if len(found) != 1:
            raise Misconfigured(
                f"{self._shown} is an alias of {len(found)} indices: a document that changes would be in two of them. "
                "Name one index, or an alias of one.",
            )
        [(name, there)] = found.items()
        if "data_stream" in there:
            raise Misconfigured(
                f"{self._shown} is a data stream, which keeps every version of a document. Name an index.",
            )
        self._check_memory(name, there.get("settings", {}))
        if _lacks(self._mappings, there.get("mappings", {})):
            self._add_fields()

    def _check_memory(self, name: str, settings: Mapping[str, str]) -> None:
        """Exactly-once needs that the server remembers a delete for as long as an older upsert may be on its way."""
        remembered = settings.get("index.gc_deletes")
        if remembered is not None and 0 <= seconds(remembered) < GC_DELETES_LEAST_S:
            _log.warning(
                "%s: index.gc_deletes is %s, so that an upsert which arrives late, after a kill, may bring a deleted "
                "document back. Set it to %ss or more: PUT /%s/_settings",
                self._shown, remembered, GC_DELETES_S, name,
            )  # fmt: skip

    def _add_fields(self) -> None:
        answer = self._ask("PUT", f"{self._path}/_mapping", self._mappings, expected=(400,))
        if answer.status == 400:
            raise Misconfigured(
                f"{self._shown}: the index's mappings contradict the plan's: {refusal(answer.body)}. Correct "
                "mappings=, or name a new index and give the plan a higher version.",
            )


def wanted(mappings: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's mappings with Ferryman's own object."""
    return {**mappings, "properties": {**mappings.get("properties", {}), OBJECT: OWN_FIELDS}}


def seconds(time_value: str) -> float:
    """A time as settings have it (``60s``); infinite for what means no end (``-1``) or is not a time."""
    found = re.fullmatch(r"(\d+)(\w+)", time_value)
    return int(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else float("inf")


def _lacks(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Is there anything in ours that is not, or is otherwise, in theirs? What they have beside is theirs."""
    for key, value in ours.items():
        if key not in theirs:
            if not (key == "type" and value == "object" and "properties" in theirs):  # the server leaves that out
                return True
        elif isinstance(value, Mapping) and isinstance(theirs[key], Mapping):
            if _lacks(value, theirs[key]):
                return True
        elif str(value).lower() != str(theirs[key]).lower():  # it has some numbers and truths as text
            return True
    return False
