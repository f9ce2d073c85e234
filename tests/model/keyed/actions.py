"""What may happen to a plan that keeps state by key, each by its name; see ``tests.model.actions``."""

from __future__ import annotations

from typing import Final

from tests.model.actions import Action, Step, told

_SETTLE = "engine.settle"

KEYED_ACTIONS: Final[dict[str, Action]] = {
    # the outside
    "entry.arrives": Action("somebody appends an entry to the log", fault=True),
    "crash.driver": Action("the driver is killed, its tasks go on", fault=True),
    "crash.retry": Action("a worker is killed, Spark starts its task again", fault=True),
    "crash.all": Action("everything is killed", fault=True),
    "crash.power": Action("the power goes before the commit is synced", (), ("wave.logged",), fault=True),
    # a driver starts
    "take": Action("a driver starts, and announces its epoch", ("state.state.State.take",)),
    "take.rival": Action("a driver starts while another one lives", ("state.state.State.take",), fault=True),
    "recover": Action("looks for an unsettled wave", ("engine.run.Run.recover",), ("recover.settled",)),
    "lost": Action("finds that another driver has taken over, and stops", ("storage.tables.taken_over_error",)),
    "end": Action("has nothing more to do, and ends without having noticed that it was overtaken"),
    # the wave
    "look": Action("takes what lies behind the position", ("engine.logs.Logs.refresh", "engine.logs.Logs.next_batch")),
    "commit": Action(
        "commits rows for the node and the destination, and the positions in the log and in the exports",
        ("engine.commit.commit_wave", "state.logs.LogPositions.transactions"),
        ("wave.logged", "wave.synced"),
    ),
    "commit.synced": Action("syncs the commit", ("storage.delta.DeltaLog.commit",), ("wave.synced",)),
    # state by key
    "update.dispatch": Action(
        "groups what is due by key, and starts a task for each key",
        ("engine.keyed.phase.KeyUpdates.run", "engine.keyed.grouping.GroupByKey.__call__"),
        ("update.grouped",),
    ),
    "update.double": Action("a second attempt of a task starts", fault=True),
    "update.call": Action(
        "calls update with the state and the documents, and writes files",
        ("engine.keyed.update.KeyCalls.update", "engine.keyed.update.UpdateOutput.finish"),
        ("update.staged",),
    ),
    "update.raises": Action("update raises for a document, for now", ("engine.keyed.update.failed_row",), fault=True),
    "update.rejects": Action("update raises for a document, for good", ("engine.keyed.update.failed_row",), fault=True),
    "update.publish": Action(
        "names the files in the journal, if nobody has done so for this key",
        ("state.journal.Journal.publish_update",),
        ("update.result",),
    ),
    "update.done": Action("all tasks have returned", ("engine.keyed.phase.KeyUpdates.run",), ("update.done",)),
    "update.late": Action("goes on while a task is still at it", fault=True),
    # deliver
    "dispatch": Action("starts a task for each key's exports", ("engine.deliver.dispatch.Dispatcher.deliver",)),
    "send.look": Action("looks whether its pass is open", ("engine.deliver.turn.Turn.may_send",)),
    "send": Action("sends an export", ("engine.deliver.sending.FileDelivery._write_part",), ("deliver.sent",)),
    "send.down": Action("cannot send: the destination is away", fault=True),
    "send.lost": Action("sends an export, and the answer is lost", fault=True),
    "send.publish": Action("publishes what it sent", ("state.journal.Journal.publish",), ("deliver.result",)),
    "deliver.done": Action("all tasks have returned", ("engine.run.Run._deliver_and_settle",), ("deliver.done",)),
    "deliver.late": Action("goes on while a task is still at it", fault=True),
    # settle
    "close": Action("closes the pass", ("state.journal.Journal.close",), ("settle.closed",)),
    "read": Action("reads the journal", (f"{_SETTLE}.read_fold", "engine.settle.read_updates")),
    "ledger": Action(
        "commits the ledger: what has ended, and the files of states and exports",
        (f"{_SETTLE}._commit_ledger", "engine.settle.keyed_files"),
        ("ledger.logged", "ledger.synced"),
    ),
    "states": Action(
        "commits the states that the ledger has named",
        ("engine.settle.publish_updates",),
        (
            *("contributions.logged", "contributions.synced"),
            *("state.logged", "state.synced"),
        ),
    ),
    "exports": Action(
        "commits the exports that the ledger has named",
        ("state.keyed.KeyedTables.publish",),
        ("exports.logged", "exports.synced"),
    ),
    "trim": Action("trims the journal", ("state.journal.Journal.trim",), ("settle.trimmed",)),
    "outbox": Action("commits the outbox: what is done leaves it", (f"{_SETTLE}.rewrite",), ("outbox.logged",)),
}


class KeyedStep(Step):
    """One step of a trace."""

    __slots__ = ()

    def __str__(self) -> str:
        return told(self, KEYED_ACTIONS)
