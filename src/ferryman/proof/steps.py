"""Steps in a proof: each call is counted, what it answers is compared, and its service can be away.

A step may call a service that costs money, or that changes something. So in a proof no step may open a connection, or
declare that it changes something outside, unless the operator allows it by name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ferryman.destinations.base import Effect
from ferryman.document import Document, encode_fields
from ferryman.errors import BadDocument, PermanentError, Unavailable
from ferryman.plan import Plan, StepNode
from ferryman.plan.calls import is_async
from ferryman.proof.faults import Effects
from ferryman.proof.twins import append_lines, read_lines

CALLS: Final = "calls.jsonl"
"""File of a round with every call of a step."""

REFUSED: Final = "refused.jsonl"
"""File of a round with the connections that steps were not allowed to open."""

_current: ContextVar[str] = ContextVar("current step", default="")
"""Step that this thread or coroutine calls; "": none."""


class Call(NamedTuple):
    """A call of a step for one document.

    Attributes:
        given: hash of the document before the call.
        made: hash of what the step made of it; "": it raised.
    """

    step: str
    document: str
    given: str
    made: str


def outside_steps(plan: Plan, allowed: Collection[str]) -> list[str]:
    """Return the steps that declare an effect outside, and are neither allowed nor remembered."""
    return [
        node.name
        for node in plan.nodes
        if isinstance(node, StepNode)
        and node.effect is not Effect.SAFE
        and node.name not in allowed
        and node.remember is None
    ]


class ObservedStep:
    """Calls a step's function, and writes the call down.

    Args:
        node: the step.
        folder: folder of the round.
        effects: calls in which its service is away.
    """

    def __init__(self, node: StepNode, folder: Path, effects: Effects) -> None:
        self.fn = node.fn
        self._name = node.name
        self._arrow = node.arrow
        self._folder = folder
        self._effects = effects
        self.TIMEOUT_S = getattr(node.fn, "TIMEOUT_S", None)

    def __call__(self, given: Any) -> Any:
        before = self._begin(given)
        token = _current.set(self._name)
        try:
            made = self.fn(given)
        except Exception:
            self._write(before, [""] * len(before))
            raise
        finally:
            _current.reset(token)
        if isinstance(made, Coroutine):
            raise PermanentError(f"step {self._name} returned a coroutine, but is not an async def")
        return self._record(before, made)

    def _begin(self, given: Any) -> list[tuple[str, str]]:
        if self._effects.happens():
            raise Unavailable(f"the proof has taken the service of step {self._name} away")
        return _digests(given)

    def _record(self, before: list[tuple[str, str]], made: Any) -> Any:
        if isinstance(made, Iterator):
            return self._follow(before, made)
        self._write(before, _answers(made, len(before), whole=self._arrow))
        return made

    def _follow(self, before: list[tuple[str, str]], made: Iterator[Any]) -> Iterator[Any]:
        """Yield what a step makes, and write the call down at its end."""
        digests = []
        token = _current.set(self._name)
        try:
            for each in made:
                digests.append(_digest(each))
                yield each
        finally:
            _current.reset(token)
        self._write(before, [_join(digests)] if len(before) == 1 else digests)

    def _write(self, before: list[tuple[str, str]], made: list[str]) -> None:
        rows = [Call(self._name, id, given, after) for (id, given), after in zip(before, made, strict=False)]
        append_lines(self._folder / CALLS, rows)


class ObservedAsyncStep(ObservedStep):
    """Calls a step that is an ``async def``."""

    async def __call__(self, given: Any) -> Any:
        before = self._begin(given)
        token = _current.set(self._name)
        try:
            made = await self.fn(given)
        except Exception:
            self._write(before, [""] * len(before))
            raise
        finally:
            _current.reset(token)
        return self._record(before, made)


def observe(node: StepNode, folder: Path, effects: Effects) -> Callable[..., Any]:
    """Return a function in place of a step's, which writes its calls down."""
    kind = ObservedAsyncStep if is_async(node.fn) else ObservedStep
    return kind(node, folder, effects)


def _digests(given: Any) -> list[tuple[str, str]]:
    """Return (id, hash) of each document that a step is called with."""
    if isinstance(given, pa.RecordBatch):
        return [(str(row["id"]), _digest(row)) for row in given.to_pylist()]
    if isinstance(given, Document):
        return [(given.id, _digest(given))]
    return [(each.id, _digest(each)) for each in given]


def _answers(made: Any, count: int, *, whole: bool) -> list[str]:
    """Return a hash of the answer to each document."""
    if isinstance(made, pa.RecordBatch):
        by_id = {str(row.get("id")): _digest(row) for row in made.to_pylist()}
        return list(by_id.values()) if len(by_id) == count else [_join(list(by_id.values()))] * count
    if count == 1 and not isinstance(made, list | tuple):
        return [_digest(made)]
    if count == 1 and not whole:
        return [_join([_digest(each) for each in made])]
    return [_digest(each) for each in made]


def _digest(value: Any) -> str:
    """Return a hash of a document, or of a step's answer."""
    hasher = blake2b(digest_size=12)
    match value:
        case None:
            hasher.update(b"dropped")
        case Document():
            hasher.update(value.id.encode("utf-8", "surrogatepass") + b"\0" + _fields(value.fields) + b"\0")
            hasher.update(value.raw or b"")
        case BaseException():
            return ""
        case list() | tuple():
            return _join([_digest(each) for each in value])
        case _:
            hasher.update(repr(value).encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()


def _fields(fields: dict[str, Any]) -> bytes:
    try:
        return encode_fields(fields)
    except (BadDocument, ValueError, TypeError):
        return repr(sorted(fields)).encode("utf-8", "surrogatepass")


def _join(digests: list[str]) -> str:
    return blake2b("\0".join(digests).encode(), digest_size=12).hexdigest()


def read_calls(folder: Path) -> list[Call]:
    """Return the calls of a round."""
    return [Call(*row) for row in read_lines(folder / CALLS)]


def undetermined(calls: list[Call]) -> dict[str, str]:
    """Return the steps that made different things of equal documents, each with such a document."""
    first: dict[tuple[str, str], str] = {}
    found: dict[str, str] = {}
    for each in calls:
        if each.made and first.setdefault((each.step, each.given), each.made) != each.made:
            found.setdefault(each.step, each.document)
    return found


# Connections.


def refuse_connections(folder: Path, allowed: Collection[str]) -> None:
    """Refuse connections that steps open in this process and in those forked from it, unless the step is allowed."""
    sys.addaudithook(functools.partial(_look, folder, frozenset(allowed)))


def _look(folder: Path, allowed: frozenset[str], event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen") or not (step := _current.get()):
        return
    if step in allowed:
        return
    what = arguments[0] if event != "socket.connect" else arguments[1]
    append_lines(folder / REFUSED, [(step, str(what))])
    raise PermanentError(f"step {step} wants to call {what}, which a proof does not allow: --allow-steps {step}")


def refused_connections(folder: Path) -> list[tuple[str, str]]:
    """Return (step, what it wanted to call) of a round."""
    return list(dict.fromkeys((step, what) for step, what in read_lines(folder / REFUSED)))
