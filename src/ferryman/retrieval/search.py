"""Search in an index: by words alone, or with the plan that has filled it, also by meaning.

With a plan a question is embedded by the very step that has embedded the documents, so the two cannot come apart.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ferryman import limits
from ferryman.destinations.base import Hit, parse_query
from ferryman.destinations.vectors import VectorDestination, Where, fuse_ranks
from ferryman.document import Document, current_caller
from ferryman.errors import DeliveryError, Dropped, PlanError, UsageError, message_of, plain_text
from ferryman.net import urls
from ferryman.plan import DestinationNode, Plan, StepNode

__all__ = ["Hit", "Where", "search"]

QUESTION_ID: Final = "question"
"""Id of the document by which a step is asked a question."""


def search(
    index: str,
    text: str,
    table: str = "documents",
    limit: int = 10,
    *,
    plan: Plan | None = None,
    embed: str | None = None,
    where: Where | None = None,
    mark: tuple[str, str] = ("", ""),
) -> list[Hit]:
    """Return what an index has about a question, the best first.

    Without a plan, by words: a document is found if it has all the words of ``text``, or all of those before or after
    an ``OR``; ``"in quotes"`` they must follow each other, and ``kill*`` means all words that begin so. Case, accents,
    and "ß" or "ss" do not matter; everything else is taken literally.

    With a plan and the name of its step that computes vectors, by meaning, and by words too where the destination has a
    full-text index. The step is called with the question as a document's ``raw`` and in its field ``text``; if its
    function has an attribute ``for_question``, that is called in its place, as that of ``embed_text``. Nothing of the
    question is stored.

    Args:
        index: path or URL of a database as the plan gives it to ``Sql``, or URL of an OpenSearch index or a Solr
            collection; with a plan also the name of the destination.
        table: of ``Sql``; not needed with a plan.
        where: with a plan: only documents whose fields have these values, ``{"team": "a"}``; a list of values means any
            of them.
        mark: without a plan: what is put before and after each found word in a snippet.

    Returns:
        For each document its id, title, snippet and rank (lower is better); with a plan also its ``score`` (higher is
        better), fields and text.

    Raises:
        UsageError: there is no such index, step or destination, the index has no vectors, they are not the model's, or
            the server does not answer.
    """
    if plan is not None and embed is not None:
        node = find_destination(plan, index)
        with _usage_errors(node.name):
            return search_by_meaning(node, find_step(plan, embed), text, limit, where)
    if plan is not None or embed is not None:
        raise UsageError("a search by meaning needs both: the plan, and with embed= (--embed) the name of its step.")
    if where:
        raise UsageError(
            "a filter needs plan= and embed= (--plan and --embed): without them, words alone are searched."
        )
    if index.startswith(("http://", "https://")):
        return search_server(index, text, limit, mark=mark)
    from ferryman.destinations.sql.search import search as search_database

    return search_database(index, text, table, limit, mark=mark)


def search_by_meaning(
    node: DestinationNode, step: StepNode, text: str, limit: int, where: Where | None = None
) -> list[Hit]:
    """Return the documents of a destination that are nearest to a question, or have its words.

    Raises:
        UsageError, DeliveryError: as ``search``; of the destination as they are.
    """
    destination = node.destination
    if not isinstance(destination, VectorDestination) or not destination.vectors:
        raise UsageError(
            f"{node.name} has no vectors: give its destination vectors={{'vector': 256}}, or leave out --embed to "
            "search for words."
        )
    text = text.encode("utf-8", "replace").decode()  # half a character, as a shell may pass
    if not text.strip():
        raise UsageError("the question is empty: give some words.")
    if limit < 1:
        return []
    asked = embed_question(step, text)
    fields = [name for name in destination.vectors if asked.get(name) is not None]
    if not fields:
        raise UsageError(
            f"step {step.name} sets no vector that {node.name} has: it has set {_names(asked) or 'nothing'}, and the "
            f"vectors there are {_names(destination.vectors)}. Name the step that sets one with --embed."
        )
    by_words = destination.has_full_text and len(text.split()) <= limits.QUESTION_WORDS
    rankings = []
    for name in fields:
        if by_words:
            rankings.append(destination.hybrid(text, name, asked[name], limit, where))
        else:
            rankings.append(destination.nearest(name, asked[name], limit, where))
    return rankings[0] if len(rankings) == 1 else fuse_ranks(*rankings, limit=limit)


def search_by_words(node: DestinationNode, text: str, limit: int) -> list[Hit]:
    """Return the documents of a destination that have the words of a question.

    Raises:
        UsageError, DeliveryError: it has no full-text index, or does not answer.
    """
    from ferryman.destinations.opensearch import OpenSearch
    from ferryman.destinations.solr import Solr
    from ferryman.destinations.sql import Sql

    destination = node.destination
    if isinstance(destination, Sql):
        from ferryman.destinations.sql.search import search as search_database

        return search_database(str(destination.url), text, destination.table, limit)
    if isinstance(destination, OpenSearch | Solr):
        query = parse_query(text)
        return destination.search(query, limit, ("", "")) if query and limit > 0 else []
    raise UsageError(f"{node.name} ({type(destination).__name__}) can only be searched by meaning, and has no vectors.")


def embed_question(step: StepNode, text: str) -> Document:
    """Call a step with a question, and return the document with the fields that it has set.

    Raises:
        UsageError: it refuses the question, drops it, or cannot be called now.
    """
    from ferryman.engine.transform.calls import make_document_call

    function: Any = step.fn() if isinstance(step.fn, type) else step.fn
    step = dataclasses.replace(step, fn=getattr(function, "for_question", function))
    question = Document(QUESTION_ID, raw=text.encode(), text=text)
    caller = current_caller.set(_Caller())
    try:
        answer = make_document_call(step)(question)
        if isinstance(answer, Exception):
            raise answer
        documents = [answer] if isinstance(answer, Document) else list(answer or ())
    except Dropped as e:
        raise UsageError(f"step {step.name} drops the question: {plain_text(e)}.") from e
    except Exception as e:  # whatever the user's function raises
        raise UsageError(f"step {step.name} cannot embed the question: {message_of(e)}") from e
    finally:
        current_caller.reset(caller)
    found = next((each for each in documents if isinstance(each, Document) and each.id == QUESTION_ID), None)
    if found is None:
        raise UsageError(f"step {step.name} does not return the question: name the step that sets a vector.")
    return found


class _Caller:
    """Caller of steps for questions, of which none is a repetition of another."""

    def key_of(self, doc: Document) -> str:
        """Return an idempotency key that is never used again."""
        return uuid.uuid4().hex


def find_step(plan: Plan, name: str) -> StepNode:
    """Return the step of this name.

    Raises:
        UsageError: there is none; names those that there are.
    """
    steps = {node.name: node for node in plan.nodes if isinstance(node, StepNode)}
    if name not in steps:
        raise UsageError(f"plan {plan.name} has no step {name!r}; it has {_names(steps) or 'none'}.")
    return steps[name]


def searchable_destinations(plan: Plan) -> list[DestinationNode]:
    """Return the destinations of a plan, without those of errors."""
    return [node for node in plan.nodes if isinstance(node, DestinationNode) and not node.errors]


def find_destination(plan: Plan, index: str | None = None) -> DestinationNode:
    """Return a destination of the plan, by its name or by the place it writes to; None: the only one with vectors.

    Raises:
        UsageError: there is none, or there are several; names them.
    """
    nodes = searchable_destinations(plan)
    if index is None:
        found = [node for node in nodes if getattr(node.destination, "vectors", None)]
    else:
        found = [node for node in nodes if node.name == index]
        found = found or [node for node in nodes if index in _places(node) or _place(index) in _places(node)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(
        f"{node.name} ({node.destination.target() or type(node.destination).__name__})" for node in nodes
    )
    if not found:
        what = "no destination with vectors" if index is None else f"no destination {_place(index)}"
        raise UsageError(f"plan {plan.name} has {what}; it has {listed or 'none'}.")
    several = f"{len(found)} destinations" + (" with vectors" if index is None else " there")
    raise UsageError(f"plan {plan.name} has {several}: say by its name which one is meant: {listed}.")


def _places(node: DestinationNode) -> set[str]:
    """Return the texts by which a destination's target may be named: with and without the table in it."""
    target = node.destination.target()
    return set() if target is None else {target, target.partition("#")[0], target.removeprefix("file://")}


def _place(index: str) -> str:
    """Return a path or URL in the form of a target, without password."""
    from ferryman.destinations.sql.search import place_of

    if "://" not in index:
        path = os.path.abspath(os.path.expanduser(index))
        return path if os.path.isdir(path) else f"sqlite:///{path}"
    if index.startswith(("http://", "https://")):
        return urls.strip_secrets(index).rstrip("/")
    return place_of(index)


@contextmanager
def _usage_errors(name: str) -> Iterator[None]:
    """Convert errors of a destination that is asked, which the caller has to fix."""
    try:
        yield
    except (DeliveryError, ConnectionError, TimeoutError) as e:
        raise UsageError(f"{name}: {plain_text(e)}") from e
    except PlanError as e:
        raise UsageError("\n".join(e.findings)) from e


def _names(names: Any) -> str:
    """Return names for a message, without the question's own field."""
    return ", ".join(name for name in names if name != "text")


# --- search in an index of OpenSearch or a collection of Solr, by its URL ---


def search_server(url: str, text: str, limit: int = 10, *, mark: tuple[str, str] = ("", "")) -> list[Hit]:
    """Return the best hits first. Words are found as in a database; accents, if the fields' analyzers fold them.

    Args:
        url: ``http://localhost:9200/plays`` or ``http://localhost:8983/solr/plays``; ``${NAME}`` in it is filled in
            from the environment.
        mark: what is put before and after each found word in a snippet.

    Raises:
        UsageError: the URL names no index, the server does not answer, or refuses.
    """
    from ferryman.destinations.opensearch import OpenSearch
    from ferryman.destinations.solr import Solr

    query = parse_query(text)
    server, _, index = url.rstrip("/").rpartition("/")
    try:
        if "/solr/" in urlsplit(url).path:
            destination: OpenSearch | Solr = Solr(url)
        elif urlsplit(server).netloc:
            destination = OpenSearch(server, unquote(index))
        else:
            raise UsageError(f"{urls.strip_secrets(url)}: name the index, too: http://localhost:9200/plays.")
        return destination.search(query, limit, mark) if query and limit > 0 else []
    except PlanError as e:
        raise UsageError("\n".join(e.findings)) from None
    except (DeliveryError, ConnectionError) as e:
        raise UsageError(str(e)) from e
