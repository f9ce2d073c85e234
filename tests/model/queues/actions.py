"""What may happen between a log and two queues, each by its name; see ``tests.model.actions``."""

from __future__ import annotations

from typing import Final

from tests.model.actions import Action, Step, told

_SETTLE = "engine.settle"
_APPEND = "queues.append.append_rows"

QUEUE_ACTIONS: Final[dict[str, Action]] = {
    # the outside
    "entry.arrives": Action("somebody appends an entry to the log", fault=True),
    "crash.driver": Action("the driver is killed, its workers go on", fault=True),
    "crash.worker": Action("a worker is killed", fault=True),
    "crash.retry": Action("a worker is killed, Spark starts its task again", fault=True),
    "crash.all": Action("everything is killed", fault=True),
    "crash.power": Action("the power goes before the commit is synced", (), ("wave.logged",), fault=True),
    "skip": Action(
        "sees that the plan has stopped, and has it pass the entry",
        ("operations.skip", "state.commands.queue_command"),
        ("command.queued",),
        fault=True,
    ),
    "retry": Action(
        "sees that the plan has stopped, and gives the entry its attempts again",
        ("state.commands.queue_command",),
        ("command.queued",),
        fault=True,
    ),
    # a driver starts
    "take": Action("a driver starts, and announces its epoch", ("state.state.State.take",), ("epoch.logged",)),
    "take.rival": Action("a driver starts while another one lives", ("state.state.State.take",), fault=True),
    "recover": Action("looks for an unsettled wave", ("engine.run.Run.recover",), ("recover.settled",)),
    "lost": Action("finds that another driver has taken over, and stops", ("storage.tables.taken_over_error",)),
    "end": Action("has nothing more to do, and ends without having noticed that it was overtaken"),
    "end.stopped": Action("has nothing more to do, as the plan has stopped, and ends"),
    # what operators have asked for
    "command": Action(
        "commits what a command changes of the stop",
        ("engine.commands._retry_stopped", "state.logs.LogPositions.retry_transactions"),
        ("command.staged", "wave.logged", "wave.synced"),
    ),
    "command.void": Action("finds that the plan does not stop there any more", ("engine.commands._retry_stopped",)),
    "command.done": Action("removes the command", ("engine.commands.apply",), ("command.done",)),
    # reading by position
    "look": Action(
        "looks where the log ends, and takes what lies behind the position",
        ("engine.logs.Logs.refresh", "engine.logs.Logs.next_batch"),
    ),
    "look.retries": Action("takes entries whose retry is due", ("engine.logs.Logs.due_entries",), ("scan.judged",)),
    "walk": Action("a task reads the entries and stages files", ("engine.transform.task.Transform.__call__",)),
    "walk.transient": Action(
        "a step fails for one of them, for now",
        ("engine.transform.log_entries.LogEntries.block_if_unfinished",),
        ("transform.outbox", "transform.documents", "transform.staged"),
        fault=True,
    ),
    "walk.permanent": Action(
        "a step fails for one of them, for good",
        ("engine.transform.staging.ErrorMessages.add",),
        ("transform.ledger",),
        fault=True,
    ),
    "cut": Action("ends the wave before an entry that has to wait", ("engine.logs.Logs.select_results",)),
    "stop.staged": Action(
        "stages the event that says before which entry the plan stops",
        ("engine.logs.Logs._record_stops",),
        ("stop.staged",),
    ),
    "stop.known": Action("stops where it has stopped before", ("engine.logs.Logs._record_stops",)),
    "done": Action("the walk counts", ("engine.transform.phase.TransformPhase.run",), ("transform.done",)),
    "redeliver": Action("opens a wave without entries", ("engine.run.Run._run_delivery_wave",)),
    "commit": Action(
        "commits outputs, error messages and the position",
        ("engine.commit.commit_wave", "state.logs.LogPositions.transactions"),
        ("commit.ready", "wave.logged", "wave.synced"),
    ),
    "commit.synced": Action("syncs the commit", ("storage.delta.DeltaLog.commit",), ("wave.synced",)),
    "note": Action(
        "tells the log where the plan stands",
        ("engine.logs.Logs.after_commit", "queues.positions.Positions.record"),
        ("tailer.noted",),
    ),
    # appending
    "dispatch": Action("starts a task for each queue", ("engine.deliver.dispatch.Dispatcher.deliver",)),
    "append.look": Action("looks whether its pass is open", ("engine.deliver.turn.Turn.may_send",)),
    "append.read": Action(
        "reads the newest version of the queue: which rows are not there?",
        ("queues.append.RepeatingWriter.new_rows",),
        ("append.staged", "append.written"),
    ),
    "append": Action(
        "links the entry that names the messages and the highest sequence",
        (_APPEND, "queues.append.RepeatingWriter.transactions"),
        ("append.logged", "append.synced", "deliver.sent"),
    ),
    "append.beaten": Action("finds that somebody else was faster", (_APPEND,)),
    "append.lost": Action("appends, and the answer is lost", ("destinations.queue.Queue.write",), fault=True),
    "append.down": Action("cannot append: the folder is away", ("destinations.queue.Queue.write",), fault=True),
    "append.noted": Action("only under a mutation: notes the highest sequence by itself"),
    "publish": Action(
        "publishes what it appended, and what was refused",
        ("engine.deliver.sending.FileDelivery._write_part",),
        ("deliver.part", "deliver.result"),
    ),
    "deliver.done": Action("all tasks have returned", ("engine.run.Run._deliver_and_settle",), ("deliver.done",)),
    "deliver.late": Action("goes on while a worker is still at it", fault=True),
    # settle
    "close": Action("closes the pass", ("state.journal.Journal.close",), ("settle.closed",)),
    "read": Action("reads the journal", (f"{_SETTLE}.read_fold",)),
    "ledger": Action(
        "commits the ledger", (f"{_SETTLE}._commit_ledger",), ("settle.repaired", "ledger.logged", "ledger.synced")
    ),
    "documents": Action("commits the documents", (f"{_SETTLE}.settle",), ("documents.logged", "documents.synced")),
    "trim": Action("trims the journal", ("state.journal.Journal.trim",), ("settle.trimmed",)),
    "outbox": Action(
        "commits the outbox: what is done leaves it, messages about what was refused come to it",
        (f"{_SETTLE}.rewrite", "engine.settle.RefusalReporter.files"),
        ("settle.rewrite", "settle.rewritten", "outbox.logged", "outbox.synced"),
    ),
    "errors": Action("only under a mutation: commits messages about what was refused by themselves"),
}


class QueueStep(Step):
    """One step of a trace."""

    __slots__ = ()

    def __str__(self) -> str:
        return told(self, QUEUE_ACTIONS)
