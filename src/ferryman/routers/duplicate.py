"""Every branch, a copy each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ferryman.document import Document
from ferryman.routers.base import Router


class Duplicate(Router):
    """A copy down every branch. Copies that meet again are deliveries of their own: the route tells them apart."""

    copies: ClassVar[bool] = True

    def __init__(self) -> None:
        self._branches: tuple[str, ...] = ()

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = tuple(branches)

    def choose(self, document: Document) -> Sequence[str]:
        return self._branches
