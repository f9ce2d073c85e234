"""State by key when a new version continues from an older one: what can be carried over, and how it is.

A keyed node that both versions have keeps its states, what it was given of documents, and the numbers of its exports.
The documents whose way has changed are read again and replace what they were. That is right only where nothing is under
way at the node or below it, and where what is in its state can be taken out again by the node as it is now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ferryman.errors import UsageError
from ferryman.plan import KeyedNode, Plan, keyed_nodes, sources_of, structure
from ferryman.plan.keyed import counted_once
from ferryman.plan.structure import Structure, keyed_of
from ferryman.records.change_readers import FOLDER, FORGOTTEN, feed_of
from ferryman.records.keyed import PUBLISHED, lanes, place_id
from ferryman.sources import Log
from ferryman.state.commands import waiting
from ferryman.state.keyed import MERGED
from ferryman.state.log_positions import LogPositions
from ferryman.state.state import State
from ferryman.state.unfinished import counted_and_failed, unfinished
from ferryman.storage import files
from ferryman.storage.links import carry_table
from ferryman.storage.query import connect, quoted_list
from ferryman.storage.tables import Table


def refuse_unfit(old: State, plan: Plan, *, begun: bool) -> None:
    """Refuse what could not be right.

    Args:
        old: the older state, settled.
        begun: it was fenced for this version before, when nothing was waiting.

    Raises:
        UsageError: why; nothing was changed.
    """
    before = old.remembered()
    keyed = keyed_of(before)
    if not keyed and not keyed_nodes(plan.nodes):
        return
    version = old.plan.version
    if bad := [*_unlike(old, plan, before, version)]:
        raise UsageError("\n".join(f"--from-version {version}: {each}" for each in bad))
    if begun or not keyed:
        return
    logs = [name for name in counted_once(plan.nodes) if name not in keyed]
    found = [*unfinished(old, keyed, before), *counted_and_failed(old, logs, keyed)]
    found += [f"`{command.verb}` by {command.who} is queued, and was not carried out" for command in waiting(old)]
    if found:
        raise UsageError(
            f"--from-version {version}: this plan keeps state by key, and version {version} is not done with what it "
            f"was given:\n  " + "\n  ".join(found) + f"\nRun version {version} to its end first; retry what has "
            "failed, or give it up with `ferryman resolve --as dropped`. Nothing was changed."
        )


def carried_nodes(old: State, plan: Plan) -> list[KeyedNode]:
    """Keyed nodes that both versions have."""
    had = keyed_of(old.remembered())
    return [node for node in keyed_nodes(plan.nodes) if node.name in had]


def remembered_of(old: State, plan: Plan) -> dict[str, Any]:
    """What the new state keeps of keyed nodes beside itself: by which name those know the changes of a node's state who
    read them from the older version; and all that there ever were, for the places of their exports are used once."""
    return {
        "feeds": {node.name: feed_of(old.root, node.name) for node in carried_nodes(old, plan)},
        "keyed": sorted(ever_keyed(old)),
    }


def ever_keyed(old: State) -> set[str]:
    """The keyed nodes of this version and of those before it."""
    return keyed_of(old.remembered()).union(old.identity().get("keyed", ()))


def carry(old: State, new: State) -> None:
    """Fill the tables of the nodes that both versions have; one commit a table. Exports have all been carried on: only
    their places are kept, also for a node that comes back."""
    both = {node.name for node in carried_nodes(old, new.plan)}
    for node in keyed_nodes(new.plan.nodes):
        ours = new.keyed[node.name]
        places = LogPositions(old, node.name).of({"": ""}, {"": lanes()})
        numbers = {place_id(lane): place for lane, place in places.items() if place}
        if node.name in both:
            theirs = old.keyed[node.name]
            numbers = {place_id(lane): theirs.exports.number(place_id(lane)) for lane in lanes()}
            _copy(theirs.state, ours.state, (PUBLISHED, MERGED, FORGOTTEN))
            _copy(theirs.contributions, ours.contributions, (PUBLISHED, MERGED))
            numbers[PUBLISHED] = theirs.exports.number(PUBLISHED)
            readers = old.root / FOLDER / node.name
            for name in files.names(readers):  # what they have not had of deletions is kept
                files.make_folder(new.root / FOLDER / node.name)
                files.publish(new.root / FOLDER / node.name / name, files.read(readers / name))
        if any(numbers.values()):
            ours.exports.commit("version", transactions={key: number for key, number in numbers.items() if number})


def _copy(source: Table, target: Table, applications: Iterable[str]) -> None:
    numbers = {each: source.number(each) for each in applications}
    carry_table(source, target, {key: number for key, number in numbers.items() if number})


def _unlike(old: State, plan: Plan, before: Structure, version: int) -> Iterator[str]:
    """What the two plans have that does not fit together."""
    after, ever = structure(plan), ever_keyed(old)
    for name in sorted(after):
        was_keyed = name in ever and (name not in before or before[name].kind == "keyed")
        if (name in before or was_keyed) and was_keyed != (after[name].kind == "keyed"):
            was = "keyed" if was_keyed else before[name].kind
            yield f"{name} is a {after[name].kind} node now, and was a {was} node before: give it another name."
    documents = {n.name for n in sources_of(plan.nodes) if not isinstance(n.source, Log)}
    for node in carried_nodes(old, plan):
        if before[node.name].code != after[node.name].code and old.keyed[node.name].contributions.files:
            yield (
                f"{node.name}: its update or key has changed since version {version}, and what the older one has made "
                "of documents could not be taken back by the newer one. Give the node another name: then it counts "
                "all documents from scratch. Or leave out --from-version."
            )
        if left := _left_behind(old, node.name, documents):
            yield (
                f"{node.name}: has counted documents of {', '.join(left)}, of which this version would never hear "
                "again: they would stay counted. Give the node another name: then it counts all documents "
                "from scratch. Or leave out --from-version."
            )


def _left_behind(old: State, node: str, documents: set[str]) -> list[str]:
    """Sources of which the node has documents, and that the new plan does not list."""
    table = old.keyed[node].contributions
    if not table.files:
        return []
    rows = f"read_parquet({quoted_list(map(str, table.paths()))})"
    with connect(old.spill) as db:
        known = {source for (source,) in db.execute(f"SELECT DISTINCT source FROM {rows}").fetchall()}
        if not (gone := known - documents):
            return []
        found = db.execute(f"""
            SELECT DISTINCT source FROM (
                SELECT source, fields FROM {rows} WHERE source IN (SELECT unnest({quoted_list(gone)}))
                QUALIFY row_number() OVER (PARTITION BY source, document, key ORDER BY wave DESC) = 1
            ) WHERE fields IS NOT NULL ORDER BY source
        """).fetchall()
    return [source for (source,) in found]
