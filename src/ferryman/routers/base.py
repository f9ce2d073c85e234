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

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from ferryman.document import Document


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
    """What ``plan check`` says of branches with different destinations below a router that is not deterministic."""

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
