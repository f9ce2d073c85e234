"""Whether the targets of a run are still those that its state has delivered to, and neither they nor the state were put
back from an older copy."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.destinations.base import Destination, Effect
from ferryman.engine.deliver.sending import context_of
from ferryman.engine.deliver.turn import Hung, ThreadCaller
from ferryman.engine.target_look import TargetLook
from ferryman.errors import DeliveryError, StateDamaged, unless_interrupt
from ferryman.plan import DestinationNode, nodes_by_target, target_of
from ferryman.records.rows import LEDGER, ORDINAL_STEPS, RANGE, STALE, Status
from ferryman.state.state import State, sender_of
from ferryman.state.targets import AHEAD, BEHIND, Probe, Target, load_targets, save_targets
from ferryman.storage import parquet

_WAIT_S: Final = 5.0
"""Time that a destination has for its answer: nothing of the run depends on it."""

_LOOK_S: Final = 60.0
"""Time for a look at what differs, together with the ledger."""

_PROBES: Final = 10
"""Last deliveries to a target that a run looks for."""

_PROBED_WAVES: Final = 100
"""Waves in which they are searched."""

_RECORDS: Final = 100
"""Records newer than the state that are looked at."""


class TargetWatch:
    """Compares targets with what the state knows of them, once a run, and records what a later run compares. For a
    state's driver.

    - The identity of a target: one that was recreated or replaced lacks what was delivered before.
    - The highest sequence that it has of this state: if the state has not reached it, the *state* is an older copy.
      Then the next sequence is raised above it, else what is delivered from now on would be stale.
    - The last deliveries: a target that lacks them, or has a lower sequence than before, is an older copy, or was
      emptied.

    ``ferryman verify --repair`` and ``ferryman adopt`` settle what was found.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        nodes = [node for node in state.plan.nodes if isinstance(node, DestinationNode)]
        self._nodes = {node.name: node for node in nodes}
        self._beside = nodes_by_target(state.plan.nodes)
        self._identified: set[str] = set()
        self._compared: set[str] = set()
        self._remembered: dict[str, int] = {}
        """Destination -> wave after which its highest sequence was recorded."""
        self._is_new = not state.wave
        try:
            self._recorded = load_targets(state.root)
        except StateDamaged:  # ``fsck`` reports it; what it had is recorded again
            self._recorded = {}
        self._saved = dict(self._recorded)

    # --- identity ---

    def look(self, name: str) -> None:
        """Ask a destination for the identity of its target, once a run. Call it after ``check``."""
        self.compare([name])
        node = self._nodes.get(name)
        if node is None or name in self._identified or not _overrides(node, "identity"):
            return
        self._identified.add(name)
        found = ask_target(node, node.destination.identity)
        if found is None:
            return
        recorded = self._recorded.get(name, Target())
        if not recorded.id:
            if not found:
                return
            now = msgspec.structs.replace(recorded, id=found)
        elif found == recorded.id:
            now = msgspec.structs.replace(recorded, found=None, since="")
        elif found == recorded.found:
            now = recorded
        else:
            now = msgspec.structs.replace(recorded, found=found, since=_now())
        self._record(name, now)

    def _record(self, name: str, now: Target) -> None:
        self._recorded[name] = now
        if self._recorded != self._saved:
            save_targets(self._state.root, self._recorded)
            self._saved = dict(self._recorded)

    # --- older copies ---

    def compare(self, names: Collection[str] | None = None) -> None:
        """Compare targets with the state, those that answer once a run. Call it before anything is committed.

        Args:
            names: of destinations; None: all.
        """
        wanted = [name for name in self._nodes if names is None or name in names]
        if self._is_new or not (wanted := [name for name in wanted if name not in self._compared]):
            return
        self._find_probes()
        for name in wanted:
            node = self._nodes[name]
            recorded = self._recorded.get(name, Target())
            answer = ask_target(node, partial(self._compare, node, recorded))
            if answer is None:
                continue
            self._compared.add(name)
            trouble, above, in_doubt = answer
            if in_doubt and ask_target(node, partial(self._look(node).is_older, in_doubt), _LOOK_S):
                trouble = BEHIND
            if trouble and not recorded.trouble:
                self._record(name, msgspec.structs.replace(recorded, trouble=trouble, noticed=_now()))
            self._state.skip_sequences(above)

    def _compare(self, node: DestinationNode, recorded: Target) -> tuple[str, int, list[str]]:
        """Return what is wrong with a target, a sequence that the state has to exceed, and the ids of its last
        documents if it lacks one of them, which the ledger may explain.

        Raises:
            DeliveryError: it cannot be asked.
        """
        destination, next_sequence = node.destination, self._state.next_sequence
        if _overrides(node, "highest_of"):
            highest = self._highest_of(node)
            if highest >= next_sequence and destination.effect is not Effect.POTENT:  # else the run refuses the state
                return AHEAD, highest, []
            if highest < recorded.highest:
                return BEHIND, 0, []
        elif _overrides(node, "newer_than"):
            records = list(islice(destination.newer_than(next_sequence - 1), _RECORDS))
            if records and self._look(node).has_unknown(records):
                return AHEAD, destination.highest_sequence() or 0, []
            if _tells_highest(node) and self._highest_of(node) < recorded.highest:
                return BEHIND, 0, []
        return "", 0, self._missing_probes(node, recorded.probes)

    def _missing_probes(self, node: DestinationNode, probes: Sequence[Probe]) -> list[str]:
        """Return the ids of these deliveries if one of them is not there, or one that was deleted is."""
        if not probes or not node.destination.keyed_by_id or not _overrides(node, "inventory"):
            return []
        ids = [probe.document for probe in probes]
        stored = {each.id: each.hash for each in node.destination.inventory(self._context(node), ids)}
        as_known = all(stored.get(each.document) == (None if each.is_delete else each.hash) for each in probes)
        return [] if as_known else ids

    def _look(self, node: DestinationNode) -> TargetLook:
        return TargetLook(self._state.root, self._state.plan, self._beside[target_of(node)])

    def _highest_of(self, node: DestinationNode) -> int:
        """Return the highest sequence of a target: of this state, or of anybody if it does not tell whose it is."""
        if _overrides(node, "highest_of"):
            highest = node.destination.highest_of(self._context(node))
        else:
            highest = node.destination.highest_sequence()
        return highest if isinstance(highest, int) else 0

    def _context(self, node: DestinationNode) -> Any:
        return context_of(self._state.plan, node, self._state.wave, sender_of(self._state.root))

    def _find_probes(self) -> None:
        """Find the last deliveries to each target, in the waves since the recorded ones."""
        keyed = [node.name for node in self._nodes.values() if node.destination.keyed_by_id]
        waves = {name: self._recorded.get(name, Target()).wave for name in keyed}
        last = self._state.wave
        if not (names := {name for name, wave in waves.items() if wave < last}):
            return
        since = max(min(waves[name] for name in names), last - _PROBED_WAVES)
        for name, probes in last_deliveries(self._state, names, since).items():
            self._recorded[name] = msgspec.structs.replace(self._recorded.get(name, Target()), probes=probes)
        for name in names:
            self._recorded[name] = msgspec.structs.replace(self._recorded.get(name, Target()), wave=last)

    # --- for later runs ---

    def remember(self) -> None:
        """Record which sequences targets have now, for the next run. Call it between waves."""
        self.compare()
        for name, node in self._nodes.items():
            if not self._is_new and name not in self._compared:
                continue  # what it has was not compared with what it had
            recorded = self._recorded.get(name, Target())
            if recorded.trouble or not _tells_highest(node):
                continue
            if recorded.highest and self._remembered.get(name) == self._state.wave:
                continue
            highest = ask_target(node, partial(self._highest_of, node))
            if highest is not None:
                self._remembered[name] = self._state.wave
                self._record(name, msgspec.structs.replace(recorded, highest=highest))

    def messages(self) -> list[str]:
        """Return a message about each target that is not as the state knows it, after asking those not asked in this
        run."""
        self.compare()
        for name in sorted(self._recorded.keys() & self._nodes.keys()):
            self.look(name)
        return [
            _describe_trouble(self._nodes[name], target)
            for name, target in sorted(self._recorded.items())
            if target.needs_verification and name in self._nodes
        ]


def last_deliveries(state: State, names: Collection[str], since: int) -> dict[str, list[Probe]]:
    """Return destination -> some of the deliveries of the last wave after ``since`` in which any arrived there."""
    columns = pa.schema([LEDGER.field(name) for name in _PROBED])
    condition = (pc.field("wave") > since) & (pc.field("status") == Status.INDEXED.value)
    condition &= pc.field("ordinal") != ORDINAL_STEPS
    newest: dict[str, int] = defaultdict(int)
    found: dict[str, list[Probe]] = {}
    paths = state.ledger.paths()
    for batch in parquet.scan(paths, columns).to_batches(filter=condition) if paths else ():
        for name in names:
            rows = batch.filter(pc.equal(batch["destination"], name))
            if not rows.num_rows or (wave := pc.max(rows["wave"]).as_py()) < newest[name]:
                continue
            if wave > newest[name]:
                newest[name], found[name] = wave, []
            for row in rows.filter(pc.equal(rows["wave"], wave)).slice(0, _PROBES).to_pylist():
                is_plain = row["message"] != STALE and not row["version"].startswith(RANGE)
                if is_plain and len(found[name]) < _PROBES:
                    found[name].append(Probe(row["document"], row["delivery_hash"], row["operation"] == "delete"))
    return found


_PROBED: Final = (
    "wave", "ordinal", "status", "destination", "document", "delivery_hash", "operation", "version", "message",
)  # fmt: skip


def _overrides(node: DestinationNode, method: str) -> bool:
    """Return whether a destination has its own version of a method."""
    return getattr(type(node.destination), method) is not getattr(Destination, method)


def _tells_highest(node: DestinationNode) -> bool:
    """Return whether a target's highest sequence shows that it is an older copy: the one of this state's deliveries, or
    that of a log, from which nothing is removed."""
    is_log = _overrides(node, "newer_than") and not node.destination.keyed_by_id
    return _overrides(node, "highest_of") or is_log


def _describe_trouble(node: DestinationNode, target: Target) -> str:
    """Return the message about a target that is not as the state knows it."""
    place = node.destination.target() or node.name
    if target.trouble == AHEAD and target.found is None:
        remedy = "`ferryman adopt PLAN` compares everything, and has sent again what differs."
        return f"destination {node.name}: {place} {target.describe()}. {remedy}"
    return (
        f"destination {node.name}: {place} {target.describe()}: what was delivered before may not be in it. "
        "`ferryman verify PLAN --repair` finds what is missing, and has it sent again."
    )


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


def ask_target(node: DestinationNode, question: Callable[[], Any], wait_s: float = _WAIT_S) -> Any:
    """Return a destination's answer to a question about its target; None: it does not answer, which says nothing."""
    caller = ThreadCaller(f"identity-{node.name}")
    try:
        return caller.call(question, timeout_s=wait_s)
    except (Hung, DeliveryError):
        return None
    except BaseException as e:
        unless_interrupt(e)
        return None
    finally:
        caller.end()
