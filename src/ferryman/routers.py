"""The router port: decides which branches a document takes.

A branch is called by the name of its first node. A router is asked in the workers, in this order:

    open(branches, task)    once per task
    choose(document)        once a document that comes by: the branch, or with ``copies`` the branches, that it takes

The choice is committed with the wave and stored: a retry of the document takes the same branch, without calling the
router again. For a new version of the document the router is called again. After a crash before the commit it may be
called again and may choose differently, since its first choice had no effect yet.

::

    class BySize(Router):
        def choose(self, document):
            return "large" if len(document.raw or b"") > 1_000_000 else "small"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from ferryman.document import Document
from ferryman.errors import BadDocument

__all__ = ["ByField", "Duplicate", "RoundRobin", "Router"]


class Router:
    """Base of all routers. Only ``choose`` is required.

    Routers are pickled for the workers. An exception from ``choose`` is an error of the document, as for a step; a
    branch that does not exist is a permanent error.
    """

    deterministic: ClassVar[bool] = True
    """Whether it always makes the same choice for the same document."""
    copies: ClassVar[bool] = False
    """Whether a document may take several branches, with a copy for each; the branch's name then becomes part of the
    copy's route."""
    on_unequal: Literal["warn", "error"] = "warn"
    """Whether ``plan check`` warns about, or refuses, branches with different destinations below a router that is not
    deterministic."""

    def named_branches(self) -> Iterable[str]:
        """Return branches that ``choose`` is known to return; ``plan check`` reports those that do not exist."""
        return ()

    def label(self, branch: str) -> str:
        """Return a short description of when a document takes this branch, for pictures of the plan; "" if its name is
        enough."""
        return ""

    def open(self, branches: Sequence[str], task: int) -> None:
        """Prepare for choosing. Called once per task, in the worker.

        An exception concerns the router as a whole: documents that come to it stay pending and spend no attempt, and it
        is opened again later. A ``PermanentError`` stops it for the rest of the run.

        Args:
            branches: in the order of the plan.
            task: number of the task in its wave, from 0.
        """

    def choose(self, document: Document) -> str | Sequence[str]:
        """Return the branch; with ``copies``, the branches that get a copy, each once.

        Raises:
            PermanentError: no branch is right for this document, which ends as ERROR_DOC.
        """
        raise NotImplementedError


# A single branch, chosen by a field's value.


class ByField(Router):
    """Chooses the branch that the value of ``field`` names, translated by ``mapping`` if it contains the value.

    A value that names no branch takes ``default``; without one the document ends as ERROR_DOC.

    >>> kind = text.route("by-kind", ByField("kind", {"com": "comedy"}, default="other"))
    >>> kind.step("comedy", add_laughs)

    Args:
        field: a field with text, a number or a truth value; a missing field counts as a value that names no branch.
        mapping: value -> branch.
        default: the branch for all other values.
    """

    def __init__(self, field: str, mapping: Mapping[Any, str] | None = None, default: str | None = None) -> None:
        self.field = field
        self.mapping = dict(mapping or {})
        self.default = default
        self._branches: frozenset[str] = frozenset()

    def named_branches(self) -> Iterable[str]:
        return [*self.mapping.values(), *([] if self.default is None else [self.default])]

    def label(self, branch: str) -> str:
        values = [str(value) for value, to in self.mapping.items() if to == branch]
        if branch == self.default:
            return "else" if not values else f"{self.field} = {' | '.join(values)}, or else"
        if branch not in self.mapping:
            values.append(branch)
        return f"{self.field} = {' | '.join(values)}"

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = frozenset(branches)

    def choose(self, document: Document) -> str:
        value = document.get(self.field)
        try:
            branch = self.mapping.get(value, value)
        except TypeError:  # a list or a dict names no branch
            branch = None
        if type(branch) in (int, float, bool):
            branch = self.mapping.get(str(branch), str(branch))
        if isinstance(branch, str) and branch in self._branches:
            return branch
        if self.default is not None:
            return self.default
        if self.field not in document:
            raise BadDocument(
                f"{document.id}: it has no field {self.field!r}, by which it is routed. Set it in a step before, or "
                "give ByField a default=."
            )
        raise BadDocument(
            f"{document.id}: {self.field}={value!r} names none of the branches {', '.join(sorted(self._branches))}. "
            "Give ByField a mapping or a default=."
        )


# All branches, each with a copy.


class Duplicate(Router):
    """Sends a copy down every branch. Copies that meet again at a destination are separate deliveries, distinguished by
    their routes."""

    copies: ClassVar[bool] = True

    def __init__(self) -> None:
        self._branches: tuple[str, ...] = ()

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = tuple(branches)

    def choose(self, document: Document) -> Sequence[str]:
        return self._branches


# The branches in turn.


class RoundRobin(Router):
    """Spreads documents evenly over the branches: within a task, their numbers differ by at most one.

    Tasks start at different branches, so that many small tasks are spread as evenly as a large one.

    Args:
        on_unequal: whether ``plan check`` refuses branches that lead to different destinations ("error") or warns
            ("warn").
    """

    deterministic: ClassVar[bool] = False

    def __init__(self, on_unequal: Literal["warn", "error"] = "warn") -> None:
        if on_unequal not in ("warn", "error"):
            raise ValueError(f"on_unequal={on_unequal!r}: choose warn or error.")
        self.on_unequal = on_unequal
        self._branches: tuple[str, ...] = ()
        self._next = 0

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = tuple(branches)
        self._next = task

    def choose(self, document: Document) -> str:
        branch = self._branches[self._next % len(self._branches)]
        self._next += 1
        return branch
