"""The account: what became of every delivery. Answers without Spark, and without touching the state.

Readers see committed facts only. Between a wave's commit and its settling, the files that the commit names count too,
and rows of the outbox that have no event yet are BATCHED.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, Unpack

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.account import counts as kept_counts
from ferryman.account.counts import Counted
from ferryman.account.relations import COUNTS, LEFT_OVER_STATUSES, Filter, FilterOptions, View
from ferryman.errors import EngineError, StateDamaged, UsageError
from ferryman.plan import Plan, SourceNode, destinations_of_sources, errors_node, logs_read, sources_of
from ferryman.records.families import in_family
from ferryman.records.rows import DOCUMENTS, LEDGER, LEDGER_COLUMNS, shown
from ferryman.sources.log import CombinedLog, Log, Positions
from ferryman.state.logs import RANGES, LogPositions, next_places
from ferryman.state.state import COUNTED, SETTLED, TABLES, WAVE, State, damaged_data, plan_of
from ferryman.storage import files, parquet
from ferryman.storage.files import StatePath, is_disk_full
from ferryman.storage.mirror import open_log
from ferryman.storage.query import connect

LEFT_OVER: Final = ("failed", "rejected", "in_doubt", "pending")
"""What is counted of what has not ended well."""

_ALIKE: Final = 20
"""How often a reader beside a driver that commits all the time must find the same before it believes that a file is
damaged: what the driver removes is another file each time."""

_LOOK_S: Final = 60.0
"""For so long it looks again where it finds something else each time: on a busy machine, each look may be overtaken."""

_PAUSE_S: Final = 0.05
"""Between two looks: what a driver removes from its logs is removed within moments."""

_T = TypeVar("_T")


def status(root: StatePath, plan: Plan) -> dict[str, Any]:
    """What ``status --json`` shows; see semantics. ``balanced``: does every delivery of every document add up?"""
    counted = _counted(root, plan)
    found = _reading(root, plan, View.status) if counted is None else counted.status
    logs = retry_read(root, lambda: log_counts(State(root, plan), plan))  # they go on beside us: it is not kept
    zero = dict.fromkeys(COUNTS, 0)
    combined = {name: {**zero, "delivered": number} for name, number in combined_counts(plan, logs).items()}
    return {
        **found,
        "sources": {**found["sources"], **logs},
        "destinations": {**found["destinations"], **combined},
    }


def left_over(root: StatePath, plan: Plan) -> dict[str, int]:
    """How many deliveries of current documents are ``failed``, ``rejected``, ``in_doubt`` or still ``pending``."""
    if (found := _counted(root, plan)) is None:
        return _reading(root, plan, View.left_over)
    every = found.status["destinations"].values()
    return {name: sum(counts[name] for counts in every) for name in LEFT_OVER}


def left_over_of(state: State) -> dict[str, int]:
    """The same, for its driver: where all has ended well, nothing is counted."""
    return dict.fromkeys(LEFT_OVER, 0) if _nothing_left(state) else left_over(state.root, state.plan)


def _nothing_left(state: State) -> bool:
    """Quick, as least and greatest values say it of most files. False: perhaps there is something."""
    if state.outbox.files or state.outbox.transaction(RANGES):
        return False
    bad, waits = pc.field("status").isin(LEFT_OVER_STATUSES), pc.field("due").is_valid()
    try:
        return not any(
            parquet.scan(table.paths(), schema).count_rows(filter=which)
            for table, schema, which in ((state.ledger, LEDGER, bad), (state.documents, DOCUMENTS, waits))
            if table.files
        )
    except (StateDamaged, OSError, pa.ArrowException):
        return False  # who counts says what it is


def all_reported(root: StatePath, plan: Plan) -> bool:
    """Has the plan an error queue, and has that taken all its messages?"""
    if (node := errors_node(plan.nodes)) is None:
        return False
    return not any(
        number_of_deliveries(root, plan=plan, destination=node.name, status=status) for status in ("failed", "rejected")
    )


def unread(root: StatePath, plan: Plan) -> dict[str, tuple[int, str]]:
    """Documents that an operator has asked for again and that were not listed since: of each source that lists only
    work (``Source.lists_all``) their number and one of them."""
    sources = [n.name for n in sources_of(plan.nodes) if not n.source.lists_all]
    return _reading(root, plan, lambda view: view.unread(sources)) if sources else {}


def waves(root: StatePath, limit: int = 5, plan: Plan | None = None) -> list[dict[str, Any]]:
    """The last waves, newest first: ``wave``, ``created``, ``events``, ``delivered``, ``failed``."""
    found = _counted(root, plan) if limit <= kept_counts.WAVES else None
    return _reading(root, plan, lambda view: view.waves(limit)) if found is None else found.waves[:limit]


def keep_counted(state: State, *, anew: bool) -> None:
    """Keep what ``status`` says of a large state, for those who ask; for its driver, between waves.

    Args:
        anew: also if something is kept that seems to be of this moment.
    """
    if sum(f.rows for f in state.ledger.files.values()) <= limits.COUNTED_EVENTS:
        return
    reached = destinations_of_sources(state.plan.nodes)
    with contextlib.suppress(StateDamaged):
        if not anew and kept_counts.kept(state, reached) is not None:
            return
    with view(state.root, state.plan) as seen:
        status, done = seen.status(reached), seen.waves(kept_counts.WAVES)
    kept_counts.keep(state, reached, status, done)


def miscounted(root: StatePath, plan: Plan) -> bool:
    """Is something kept of this moment that is not what the tables come to, counted again?"""
    found = _counted(root, plan, by_plan=False)
    if found is None:
        return False
    status = _reading(root, plan, lambda seen: seen.status(found.reached))
    return status != found.status and _counted(root, plan, by_plan=False) == found


def deliveries(
    root: StatePath, *, limit: int | None = None, plan: Plan | None = None, **asked: Unpack[FilterOptions]
) -> list[dict[str, Any]]:
    """Deliveries of current documents, each by its latest event, newest first; rows have the ledger's columns.

    Raises:
        UsageError: there is no such status; there is no state yet.
    """
    if limit is None:
        return list(each_delivery(root, plan=plan, **asked))
    of = Filter.of(asked)
    return _reading(root, plan, lambda seen: seen.docs(of, limit=limit))


def each_delivery(
    root: StatePath, *, limit: int | None = None, plan: Plan | None = None, **asked: Unpack[FilterOptions]
) -> Iterator[dict[str, Any]]:
    """The same deliveries one after the other: of a million few are in memory at a time."""
    of = Filter.of(asked)

    def rows() -> Iterator[dict[str, Any]]:
        with view(root, plan) as seen:
            yield from seen.each_doc(of, limit)

    def look() -> tuple[dict[str, Any] | None, Iterator[dict[str, Any]]]:
        found = rows()
        return next(found, None), found  # all files have been read when the first row is there, for they are sorted

    first, others = retry_read(root, look)
    if first is not None:
        yield first
        yield from others


def number_of_deliveries(root: StatePath, *, plan: Plan | None = None, **asked: Unpack[FilterOptions]) -> int:
    """How many these are."""
    of = Filter.of(asked)
    return _reading(root, plan, lambda seen: seen.number_of_docs(of))


def reasons(
    root: StatePath, *, limit: int | None = None, plan: Plan | None = None, **asked: Unpack[FilterOptions]
) -> list[dict[str, Any]]:
    """Why deliveries have not arrived, the most frequent reason first: ``status`` (as shown), ``deliveries`` (how
    many), ``reason`` (of one of them) and ``example``, its document.

    Reasons that differ only in numbers and in what they quote are counted together. Without a ``status``: of all
    deliveries that are neither delivered nor deleted.
    """
    of = Filter.of(asked)
    return [
        {
            "status": shown(each["status"], each["operation"]),
            "deliveries": each["deliveries"],
            "reason": each["reason"],
            "example": each["example"],
        }
        for each in _reading(root, plan, lambda seen: seen.reasons(of, limit))
    ]


def by_node(root: StatePath, plan: Plan) -> dict[str, dict[str, int]]:
    """Step or router -> status (as shown) -> how many deliveries have not arrived for a reason that names it."""
    found: dict[str, dict[str, int]] = {}
    for each in _reading(root, plan, View.by_node):
        counts = found.setdefault(each["node"], {})
        word = shown(each["status"], each["operation"])
        counts[word] = counts.get(word, 0) + each["deliveries"]
    return found


def history(root: StatePath, document: str, plan: Plan | None = None) -> list[dict[str, Any]]:
    """Every event of a document and of what was made from it, oldest first; rows have the ledger's columns. Of a file
    with rows that are documents: of its rows."""
    columns, rows_too = ", ".join(LEDGER_COLUMNS), in_family(document)
    query = f"""
        SELECT {columns} FROM (
            SELECT {columns}, ordinal FROM ledger WHERE document = $document OR {rows_too}
            UNION ALL SELECT {columns}, 3 AS ordinal FROM unsent WHERE document = $document OR {rows_too}
        ) ORDER BY wave, ordinal, created
    """
    return _reading(root, plan, lambda view: view.rows(query, {"document": document}))


def joined_of(root: StatePath, join: str, entry: str, plan: Plan | None = None) -> list[str]:
    """Documents that a join has made of this entry of one of its inputs."""
    query = """
        SELECT DISTINCT origin FROM (
            SELECT origin FROM ledger WHERE source = $join UNION ALL SELECT origin FROM unsent WHERE source = $join
        ) WHERE list_contains(string_split(origin, '&'), $entry) ORDER BY origin
    """
    rows = _reading(root, plan, lambda view: view.rows(query, {"join": join, "entry": entry}))
    return [row["origin"] for row in rows]


class StateTables(NamedTuple):
    """The open tables of a state, as they are stored; see the reference of the state directory."""

    ledger: pa.Table
    """An event a row: what happened to a delivery."""
    documents: pa.Table
    """A document a row, in each wave that changed what is known of it: the row of the highest wave counts."""


def tables(root: StatePath, plan: Plan) -> StateTables:
    """All of a state's open tables, of one moment, in memory."""
    return _reading(root, plan, lambda seen: StateTables(seen.ledger(), seen.documents()))


@contextlib.contextmanager
def view(root: StatePath, plan: Plan | None) -> Iterator[View]:
    """The state's tables, for questions.

    Raises:
        UsageError: there is no state yet.
        StateDamaged, StateForeign: by name.
    """
    state = State(root, plan if plan is not None else plan_of(root))
    if not state.exists:
        raise UsageError(
            f"{root}: there is no state of this plan yet. Run it first, or give the --state that it ran with."
        )
    with (
        state.readers.reading(),
        tempfile.TemporaryDirectory(prefix="ferryman-", ignore_cleanup_errors=True) as spill,
        named_damage(state, Path(spill)),
        connect(Path(spill)) as db,
    ):
        state.verify()
        yield View(db, state, Path(spill))


@contextlib.contextmanager
def named_damage(state: State, spill: Path) -> Iterator[None]:
    """A query of the state's files that fails says over which; DuckDB does not.

    Args:
        spill: where it puts what does not fit into memory.

    Raises:
        StateDamaged: names the file.
        EngineError: no file is damaged, there is too little room for the query.
    """
    try:
        yield
    except FileNotFoundError as e:
        raise StateDamaged(str(e.filename or e), "the file is missing") from e
    except duckdb.Error as e:
        if isinstance(e, duckdb.OutOfMemoryException) or is_disk_full(e):
            raise EngineError(
                f"{state.root}: a question needs more than {limits.QUERY_MEMORY} of memory, and there is no room for "
                f"the rest in {spill}: make room there, or set TMPDIR."
            ) from e
        found = damaged_data(state) if state.exists else None
        raise found or StateDamaged(str(state.root), f"cannot be queried ({str(e).splitlines()[0]})") from e


def retry_read(root: StatePath, look: Callable[[], _T]) -> _T:
    """What a look at a state finds; it looks again if a running driver changed files under its eyes, which looks like
    damage. It is damage if two looks find the same and nothing was committed in between, or if many find the same."""
    before: tuple[object, ...] = ()
    often: Counter[tuple[str, str]] = Counter()
    until = time.monotonic() + _LOOK_S
    while True:
        logs = last_entries(root)
        try:
            return look()
        except StateDamaged as e:
            found = (Path(e.path).name, e.what)  # a preview looks at links of the files, elsewhere each time
            often[found] += 1
            if (*found, logs) == before or often[found] >= _ALIKE or time.monotonic() >= until:
                raise
            before = (*found, last_entries(root))
        time.sleep(_PAUSE_S)


def last_entries(root: StatePath) -> tuple[int, ...]:
    """The last entry of each table's log: what changes when a driver commits."""
    with files.cached_listing(root):
        return tuple(open_log(root / name).last() for name in TABLES)


def _counted(root: StatePath, plan: Plan | None, *, by_plan: bool = True) -> Counted | None:
    """What is kept, if it is of this moment; a damaged file is as good as none.

    Args:
        by_plan: only if it was counted by this plan.

    Raises:
        StateDamaged: of a table a log is not what was written, or a data file is missing.
    """
    state = State(root, plan if plan is not None else plan_of(root))
    if not state.exists or not files.exists(root / COUNTED):
        return None
    reached = destinations_of_sources(plan.nodes) if by_plan and plan is not None else None

    def look() -> Counted | None:
        with state.readers.reading():
            state.verify()
            state.load_consistently([WAVE, SETTLED])
            for table in state.tables:
                table.verify_sizes()
            with contextlib.suppress(StateDamaged):
                return kept_counts.kept(state, reached)
            return None

    return retry_read(root, look)


def _reading(root: StatePath, plan: Plan | None, ask: Callable[[View], _T]) -> _T:
    def look() -> _T:
        with view(root, plan) as seen:
            return ask(seen)

    return retry_read(root, look)


# How far a plan has read its logs.


def log_counts(state: State | None, plan: Plan) -> dict[str, dict[str, Any]]:
    """Of each log: ``positions`` (partition -> the place that comes next), ``read`` (entries processed) and ``lag``
    (places that are not processed yet; None: the log cannot be asked, or is not where it was).

    Args:
        state: None: the plan has never run.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in logs_read(plan.nodes):
        assert isinstance(node.source, Log)
        found[node.name] = counts = _counts(None if state is None else LogPositions(state, node.name), node.source)
        if isinstance(node.source, CombinedLog):
            found |= dict(zip(node.after, _inputs(node.source, counts["positions"]), strict=True))
    return found


def combined_counts(plan: Plan, sources: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Of each join and alts, how many entries of its inputs came to it.

    Args:
        sources: as ``log_counts`` has them.
    """
    nodes = [n for n in plan.nodes if isinstance(n, SourceNode) and isinstance(n.source, CombinedLog)]
    return {n.name: sum(sources[name]["read"] for name in n.after) for n in nodes}


class _Found(NamedTuple):
    """What a log says of itself."""

    identities: Mapping[str, str]
    begin: Positions
    end: Positions
    nothing: str


def _inputs(log: CombinedLog, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
    for name, each in log.inputs.items():
        found = _ask(each)
        if found is None:
            yield {"positions": {}, "read": 0, "lag": None}
            continue
        mine = log.positions_of(name, positions)
        read = sum(at - found.begin.get(partition, at) for partition, at in mine.items())
        missing = not mine or (read and found.nothing)
        yield {"positions": mine, "read": read, "lag": None if missing else each.lag(mine, found.end)}


def _counts(kept: LogPositions | None, log: Log) -> dict[str, Any]:
    read, found = 0 if kept is None else kept.entries_read, _ask(log)
    if found is None or (read and found.nothing and not isinstance(log, CombinedLog)):
        return {"positions": {} if kept is None else kept.all_places(), "read": read, "lag": None}
    positions = next_places(kept, log, found.identities, found.begin, found.end)
    return {"positions": positions, "read": read, "lag": log.lag(positions, found.end)}


def _ask(log: Log) -> _Found | None:
    """None: it does not say. Who counts need not reach what a run reads, and a run says what is wrong."""
    try:
        log.check()
        return _Found(log.identities(), log.begin(), log.end(), log.nothing())
    except Exception:
        return None
