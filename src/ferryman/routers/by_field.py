"""One branch, named by a field's value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.routers.base import Router


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
