"""The update phase of keyed nodes, in the driver: decides which documents are due, and which task updates which keys.

1. group: one task per outbox file writes its documents as sorted runs, one per range of keys
2. update: one task per range merges the runs, calls ``update``, and publishes its results in the journal

Settle commits published results. Unpublished ones have no effect: their documents are still due.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ferryman import crash, limits
from ferryman.engine.breakers import BreakerRegistry
from ferryman.engine.keyed.grouping import GroupByKey, GroupFile, SortedRun, range_starts
from ferryman.engine.keyed.update import KeyRange, KeyReport, UpdateKeys
from ferryman.engine.runner.base import PickledPlan, Runner, run_isolating
from ferryman.engine.send_order import rows_behind, send_orders
from ferryman.errors import WorkerDied
from ferryman.plan import KeyedNode, errors_node, keyed_nodes, upstream_sources
from ferryman.records.keys import BUCKETS, key_file
from ferryman.records.rows import wait_of_file_s
from ferryman.sources import Log
from ferryman.state.keyed import may_hold
from ferryman.state.outbox import first_sequence, has_exports, pending_rows
from ferryman.state.state import State
from ferryman.storage.delta import DataFile
from ferryman.storage.files import remove_folder


class KeyUpdates:
    """Updates the states of keyed nodes, in every pass of a run."""

    def __init__(self, state: State, pickled_plan: PickledPlan, runner: Runner, breakers: BreakerRegistry) -> None:
        self._state = state
        self._pickled_plan = pickled_plan
        self._runner = runner
        self._breakers = breakers
        self._nodes = keyed_nodes(state.plan.nodes)

    def run(self, number: int, now_us: int) -> None:
        """Update the keys of all documents that are due."""
        for node in self._nodes:
            if self._breakers.wait_s(node.name) == 0 and (files := self._due_files(node, now_us)):
                self._note_reports(node.name, self._update(node, files, number, now_us))
                crash.point("update.done")

    def _due_files(self, node: KeyedNode, now_us: int) -> list[DataFile]:
        """Return all outbox files of the node, oldest first, if a row in one of them is due; otherwise none."""
        found = [f for f in self._state.outbox.files.values() if f.partition["destination"] == node.name]
        longest_s = self._state.plan.longest_backoff_s
        due = any(pending_rows(f) and wait_of_file_s(f, now_us, longest_s) == 0 for f in found)
        return sorted(found, key=first_sequence) if due else []

    def _update(self, node: KeyedNode, files: list[DataFile], number: int, now_us: int) -> list[KeyReport]:
        state, ranges = self._state, self._ranges(node, files)
        folder = state.scratch(f"update-{node.name}")
        before = state.keyed[node.name].contributions
        contribution_files = tuple(str(before.folder / name) for name in before.files) if self._may_change(node) else ()
        group_by_key = GroupByKey(
            self._pickled_plan, node.name, str(state.outbox.folder), str(folder), ranges, contribution_files, len(files)
        )
        update_keys = UpdateKeys(self._pickled_plan, str(state.root), node.name, ranges, number, now_us, state.epoch)
        try:
            to_group = self._files_to_group(node, files, number)
            runs = run_isolating(self._runner, group_by_key, to_group, dataclasses.replace(group_by_key, isolated=True))
            work = list(self._key_ranges(node, [run for each in runs for run in each], ranges))
            return run_isolating(self._runner, update_keys, work, dataclasses.replace(update_keys, isolated=True))
        except WorkerDied as e:
            return [KeyReport(f"its worker died in each attempt ({e})", permanent=True)]
        finally:
            remove_folder(folder)

    def _may_change(self, node: KeyedNode) -> bool:
        """Return whether the node receives documents that can change or be deleted."""
        return any(not isinstance(each.source, Log) for each in upstream_sources(node, self._state.plan.nodes))

    def _files_to_group(self, node: KeyedNode, files: Sequence[DataFile], number: int) -> list[GroupFile]:
        """Return the files to group, with the rows that must wait: a newer row of a changeable document waits for older
        ones, and another keyed node's export waits for earlier exports of its key that were refused."""
        keys = {first_sequence(file): file.path for file in files}
        held: dict[int, list[int]] = {}
        if self._may_change(node) and not all(int(file.partition["wave"]) == number for file in files):
            paths = dict(zip(keys, self._state.outbox.paths(keys.values()), strict=True))
            order = send_orders(paths, sum(map(pending_rows, files)), self._state.local_scratch)
            held = {key: each.held.tolist() for key, each in order.items()}
        exports = [file for file in files if has_exports(file)] if errors_node(self._state.plan.nodes) is None else []
        for path, rows in rows_behind(self._state.outbox, exports).items():
            key = first_sequence(next(file for file in exports if file.path == path))
            held[key] = [*held.get(key, []), *rows]
        return [GroupFile(path, key, held.get(key, [])) for key, path in keys.items()]

    def _ranges(self, node: KeyedNode, files: Sequence[DataFile]) -> int:
        """Return the number of key ranges, and so of tasks: at most one per bucket, and a multiple of
        ``limits.KEY_LANES``, so that no range spans two lanes."""
        size = sum(file.size for file in files)
        wanted = min(node.buckets, max(2 * self._runner.slots, size // limits.KEY_TASK_BYTES))
        if sum(file.rows for file in files) <= limits.KEY_MERGE_INPUT_ROWS:
            wanted = limits.KEY_LANES
        return -(-wanted // limits.KEY_LANES) * limits.KEY_LANES

    def _key_ranges(self, node: KeyedNode, runs: Sequence[SortedRun], ranges: int) -> Iterator[KeyRange]:
        table = self._state.keyed[node.name].state
        by_range: dict[int, list[str]] = defaultdict(list)
        for run in runs:
            by_range[run.range].append(run.path)
        starts = [*range_starts(ranges), BUCKETS]
        for number in sorted(by_range):
            first, last = starts[number], starts[number + 1] - 1
            known = [key_file(table.folder, f) for f in table.files.values() if may_hold(f, first, last)]
            yield KeyRange(number, by_range[number], known)

    def _note_reports(self, name: str, reports: Sequence[KeyReport]) -> None:
        bad = [report for report in reports if report.trouble]
        if bad:
            worst = max(bad, key=lambda report: report.permanent)
            self._breakers.record_failure(name, worst.trouble, permanent=worst.permanent)
        else:
            self._breakers.record_success(name)
