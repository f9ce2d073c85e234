"""``ferryman search``, ``ferryman evaluate`` and ``ferryman mcp``: questions to what a plan has filled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli.options import Json, StateDir, Verbose, argument, option
from ferryman.cli.terminal import print_json, print_line, print_note, print_table
from ferryman.errors import UsageError
from ferryman.limits import plural

if TYPE_CHECKING:
    from ferryman.retrieval.evaluation import Evaluation

EMBED_STEP = "embed"
"""Name of the step that computes vectors, where none is given."""

Filter = Annotated[
    list[str] | None,
    option(
        "--filter",
        "FIELD=VALUE",
        "Only documents whose field has this value, or one of several. Repeatable. With --embed.",
    ),
]
Embed = Annotated[
    str,
    typer.Option(
        "--embed", metavar="STEP", help="The plan's step that computes vectors. It embeds the questions, too."
    ),
]
Index = Annotated[str | None, option("--index", "NAME", "Name of a destination, where several have vectors.")]


def search(
    index: Annotated[
        str,
        argument(
            "INDEX",
            "An SQLite file, the URL given to Sql in the plan, or that of an index of OpenSearch or a collection "
            "of Solr: http://localhost:9200/plays, http://localhost:8983/solr/plays. With --plan also the name of a "
            "destination.",
        ),
    ],
    text: Annotated[str, argument("TEXT", "Words to look for, or a question.")],
    plan: Annotated[
        str | None, option("--plan", "PLAN", "The plan that fills the index, to search by meaning.")
    ] = None,
    embed: Annotated[
        str | None, option("--embed", "STEP", "The plan's step that computes vectors: it embeds the question, too.")
    ] = None,
    filters: Filter = None,
    table: Annotated[str, typer.Option("--table", metavar="NAME", help="The Sql destination's table.")] = "documents",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most this many hits.")] = 10,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Search what the Sql, OpenSearch or Solr destination wrote, or by meaning what any destination with vectors has.

    Full text, best hits first; for a database the plan says Sql(…, full_text=[…]). A document has all the words:
    "in quotes" they follow each other, kill* is any word that begins so, and OR stands between alternatives. Case does
    not matter, nor do accents (in OpenSearch and Solr, if the fields' analyzers fold them), and ß is ss. Starts no
    Spark.

    With --plan and --embed by meaning: the plan's own step computes the question's vector, and the nearest documents
    come first; where the destination has a full-text index, those with the words count, too. --filter leaves out all
    others before. The question is not stored.
    """
    if plan is None and embed is None:
        hits = find_hits(index, text, table, limit, filters)
    else:
        hits = find_hits_by_meaning(index, text, plan, embed, limit, filters)
    if json:
        print_json(hits)
        return
    print_hits(hits)
    if not hits:
        from ferryman.net import urls
        from ferryman.net.databases import redact

        place = urls.strip_secrets(index) if index.startswith(("http://", "https://")) else redact(index)
        print_note(f"Nothing found for {text!r} in {place}.")


def find_hits(
    index: str, text: str, table: str = "documents", limit: int = 10, filters: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the hits as ``{"id", "title", "snippet", "rank"}``, best first."""
    from ferryman.retrieval.search import search as search_index

    hits = search_index(index, text, table, limit, where=parse_filters(filters))
    return [{"id": h.id, "title": h.title, "snippet": h.snippet, "rank": h.rank} for h in hits]


def find_hits_by_meaning(
    index: str, text: str, plan: str | None, embed: str | None, limit: int, filters: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the hits as ``{"id", "title", "snippet", "rank", "score", "fields", "text"}``, best first."""
    from ferryman.plan.load import load_plan
    from ferryman.retrieval.search import search as search_index

    loaded = None if plan is None else load_plan(plan)
    hits = search_index(index, text, limit=limit, plan=loaded, embed=embed, where=parse_filters(filters))
    return [hit._asdict() for hit in hits]


def parse_filters(texts: list[str] | None) -> dict[str, list[Any]] | None:
    """Parse ``["team=a", "year=2024"]`` into field -> values. Of one that looks like a number, or true or false, that
    counts, too: the text says nothing of the type.

    Raises:
        UsageError: a text is not FIELD=VALUE.
    """
    filters: dict[str, list[Any]] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--filter {text}: give FIELD=VALUE, as in --filter team=a.")
        filters.setdefault(name.strip(), []).extend(_values_of(value))
    return filters or None


def _values_of(text: str) -> list[str | float | bool]:
    values: list[str | float | bool] = [text]
    if text in ("true", "false"):
        values.append(text == "true")
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if abs(number) < 2.0**63:  # no store compares larger ones
            values.append(number)
        break
    return values


def print_hits(hits: list[dict[str, Any]]) -> None:
    """Print a line for each hit: its score if there is one, its id, its title, and the text around the words."""
    for hit in hits:
        title = hit["title"] or (hit.get("fields") or {}).get("title")
        title = f"  {title}" if title and title != hit["id"] else ""
        snippet = _shorten(" ".join(str(hit["snippet"] or hit.get("text") or "").split()), bool(hit["snippet"]))
        score = "" if hit.get("score") is None else f"{hit['score']:.3f}  "
        print_line(f"{score}{hit['id']}{title}" + (f" — {snippet}" if snippet else ""))


def _shorten(text: str, is_snippet: bool) -> str:
    """Return the beginning of a text that is not a snippet already, cut between words."""
    from ferryman.destinations.base import SNIPPET_CHARACTERS

    if is_snippet or len(text) <= SNIPPET_CHARACTERS:
        return text
    return f"{text[:SNIPPET_CHARACTERS].rpartition(' ')[0] or text[:SNIPPET_CHARACTERS]}…"


# --- ferryman evaluate ---


def evaluate(
    plan: Annotated[str, argument("PLAN", "The plan that fills the index.")],
    questions: Annotated[Path, argument("QUESTIONS", 'A file of JSON lines: {"question": "…", "ids": ["henry.md"]}.')],
    embed: Embed = EMBED_STEP,
    index: Index = None,
    against: Annotated[
        str | None,
        option(
            "--against",
            "VERSION",
            "Measure another version beside it: v1 (this plan file, read as version 1), or another PLAN.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", metavar="N", min=1, help="Hits of a question that count.")] = 10,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure how well an index finds what it should.

    Each line of QUESTIONS has a question and the ids that should be found; a document's id stands for all chunks made
    of it. ids may also be an object of grades, {"henry.md": 2, "richard.md": 1}, and "where" an object of fields to
    filter by. Prints, as means over all questions: recall@k (the part of the ids that was found), MRR (1 / rank of the
    first), nDCG@k (high if the right ones come first), and the questions of which nothing was found. Needs
    pip install 'ferryman[evaluate]'. Nothing is stored.
    """
    from ferryman.plan.load import load_plan
    from ferryman.retrieval import evaluation

    asked = evaluation.read_questions(questions)
    loaded = load_plan(plan)
    measured = [evaluation.evaluate(loaded, asked, embed, index=index, k=k)]
    if against is not None:
        other = evaluation.load_other(plan, loaded, against, index)
        measured.append(evaluation.evaluate(other, asked, embed, index=index, k=k))
    if json:
        print_json([each.as_dict() for each in measured])
        return
    _print_measures(measured)


def _print_measures(measured: list[Evaluation]) -> None:
    from ferryman.retrieval.evaluation import label_differently

    labels = label_differently(measured)
    names = list(measured[0].means)
    rows = [[name, *(f"{each.means[name]:.3f}" for each in measured)] for name in names]
    print_table([plural(len(measured[0].questions), "question", "questions"), *labels], rows)
    for label, each in zip(labels, measured, strict=True):
        for question in each.not_found():
            print_line(f"Not found by {label}: {question.text} (expected {', '.join(question.grades)})")


# --- ferryman mcp ---


def mcp(
    plans: Annotated[list[str], argument("PLAN…", "Plans that an assistant may ask about.")],
    embed: Embed = EMBED_STEP,
    state: StateDir = None,
    port: Annotated[
        int | None,
        option(
            "--port",
            "N",
            "Serve HTTP on this port of the loopback address, 0: any free one. Default: standard input, output.",
            min=0,
            max=65535,
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Let an assistant search indexes and ask about documents, by the Model Context Protocol.

    An assistant's program starts this command and talks to it over standard input and output; with --port it serves
    http://127.0.0.1:N/mcp, to programs of this machine only. The tools only read: search with filters, the text of a
    document, its history and why it is not delivered, and the state of a plan. Questions are not stored. Needs
    pip install 'ferryman[mcp]'.
    """
    from ferryman.retrieval import assistant

    assistant.serve(assistant.load_plans(plans, state), embed, port=port, ready=print_note)
