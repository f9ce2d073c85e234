"""The router port: which branches does a document take?

A branch is called by the name of its first node. A router is asked in the workers, in this order:

    open(branches, task)    once a task
    choose(document)        once a document that comes by: the branch, or with ``copies`` the branches, that it takes

What it chose is committed with the wave and kept: a retry of a document takes the branch that it took before, without
asking again. A new version of the document is a new question. After a crash before the commit anything may be asked
again, and answered otherwise: nobody has seen the first answer.

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

    It is pickled to the workers. What ``choose`` raises is this document's error, as out of a step; a branch that is
    not there is a permanent one.
    """

    deterministic: ClassVar[bool] = True
    """False: the same document may be sent another way when it is asked again."""
    copies: ClassVar[bool] = False
    """True: a document may take several branches, a copy down each; the branch's name joins the copy's route."""
    on_unequal: Literal["warn", "error"] = "warn"
    """Finding of ``plan check`` for branches with different destinations below a router that is not deterministic."""

    def named_branches(self) -> Iterable[str]:
        """Branches that ``choose`` is known to answer: ``plan check`` looks whether they are there."""
        return ()

    def label(self, branch: str) -> str:
        """When a document takes this branch, in a few words for pictures of the plan; "" where its name says enough."""
        return ""

    def open(self, branches: Sequence[str], task: int) -> None:
        """Once a task, in the worker.

        Args:
            branches: in the order of the plan.
            task: number of the task in its wave, from 0.
        """

    def choose(self, document: Document) -> str | Sequence[str]:
        """The branch; with ``copies`` those that get a copy, each once.

        Raises:
            PermanentError: no branch is right for this document: it ends as ERROR_DOC.
        """
        raise NotImplementedError


# One branch, named by a field's value.


class ByField(Router):
    """The branch that the value of ``field`` names, through ``mapping`` if it is there.

    A value that names no branch takes ``default``; without one the document ends as ERROR_DOC.

    >>> kind = text.route("by-kind", ByField("kind", {"com": "comedy"}, default="other"))
    >>> kind.step("comedy", add_laughs)

    Args:
        field: a field that holds text, a number or a truth value; a missing one is as one that names no branch.
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


# Every branch, a copy each.


class Duplicate(Router):
    """A copy down every branch. Copies that meet again are deliveries of their own: the route tells them apart."""

    copies: ClassVar[bool] = True

    def __init__(self) -> None:
        self._branches: tuple[str, ...] = ()

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = tuple(branches)

    def choose(self, document: Document) -> Sequence[str]:
        return self._branches


# One branch, each in its turn.


class RoundRobin(Router):
    """Spreads documents evenly over the branches: within a task they differ by one at most.

    Tasks start at different branches, so that many small ones spread as evenly as one large.

    Args:
        on_unequal: "error" has ``plan check`` refuse branches that lead to different destinations; "warn" warns.
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
