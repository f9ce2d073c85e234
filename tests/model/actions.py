"""What may happen, each by its name: what it is, the code that it stands for, the crash points that it lies at.

An action is atomic in the model. The crash points that an action names are those that a kill may hit between the action
before it and itself, or within it, with the same consequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Action(NamedTuple):
    """One kind of step."""

    says: str
    code: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    fault: bool = False
    """It is something going wrong, or the outside world; without such steps every run comes to an end."""


class Step(NamedTuple):
    """One step of a trace."""

    action: str
    actor: str = ""

    def __str__(self) -> str:
        return told(self, ACTIONS)


def told(step: Step, actions: Mapping[str, Action]) -> str:
    """A step in words."""
    says = actions[step.action].says
    return f"{step.actor}: {says} [{step.action}]" if step.actor else f"{says} [{step.action}]"


_JOURNAL, _SENDING, _SETTLE = "state.journal.Journal", "engine.deliver.sending.FileDelivery", "engine.settle"

ACTIONS: Final[dict[str, Action]] = {
    # the outside
    "source.change": Action("a document changes, comes or goes", fault=True),
    "crash.driver": Action("the driver is killed, its workers go on", fault=True),
    "crash.worker": Action("a worker is killed", fault=True),
    "crash.retry": Action("a worker is killed, Spark starts its task again", fault=True),
    "crash.all": Action("everything is killed", fault=True),
    "crash.power": Action("the power goes before the commit is synced", (), ("wave.logged",), fault=True),
    # a driver starts
    "take": Action(
        "a driver starts: takes the lock, mends, loads",
        ("storage.locks.Lock.take", "storage.delta.DeltaLog.sync", "state.state.State.load"),
    ),
    "take.rival": Action("a driver starts while another one lives", ("state.state.State.take",), fault=True),
    "epoch": Action(
        "announces its epoch on a table",
        ("storage.tables.Table.fence",),
        ("epoch.logged", "epoch.synced", "epoch.table"),
    ),
    "recover": Action(
        "looks for an unsettled wave",
        ("engine.run.Run.recover", "state.maintenance.sweep"),
        ("recover.settled", "sweep.table"),
    ),
    "lost": Action("finds that another driver has taken over, and stops", ("storage.tables.taken_over_error",)),
    "end": Action("has nothing more to do, and ends without having noticed that it was overtaken"),
    # 1 scan, 2 transform, 3 commit
    "scan": Action(
        "lists and detects changes",
        ("engine.scan.phase.ScanPhase.run", "engine.scan.listing.list_sources", "engine.scan.phase.detect_changes"),
        ("scan.listed", "scan.judged"),
    ),
    "transform": Action(
        "a task reads documents and stages files",
        (
            "engine.transform.task.Transform.__call__",
            "engine.transform.walk.Walk.retry",
            "engine.transform.staging.Stager.finish",
        ),
        ("transform.outbox", "transform.documents", "transform.ledger", "transform.staged"),
    ),
    "transform.again": Action("the same task runs twice", ("engine.transform.task.Transform.__call__",), fault=True),
    "transform.failed": Action(
        "a task reads a document of which it fails itself, and its children do not",
        ("engine.transform.walk.Walk.walk_document", "engine.transform.staging.reconcile"),
        fault=True,
    ),
    "transform.away": Action(
        "a task finds that a step or the source is away, and holds its documents",
        ("engine.transform.walk.Walk.walk_unread", "engine.transform.health.NodeHealth.note_failure"),
        fault=True,
    ),
    "transform.ahead": Action(
        "tasks read and stage the documents of the next wave, while this one is delivered and settled",
        ("engine.transform.phase.TransformPhase.begin",),
        ("transform.outbox", "transform.documents", "transform.ledger", "transform.staged"),
    ),
    "transform.done": Action("one attempt's files are taken", ("engine.run.Run._run_wave",), ("transform.done",)),
    "redeliver": Action("opens a wave without documents", ("engine.run.Run._run_delivery_wave",)),
    "commit": Action(
        "commits the wave", ("engine.commit.commit_wave",), ("commit.ready", "wave.logged", "wave.synced")
    ),
    "commit.synced": Action("syncs the commit", ("storage.delta.DeltaLog.commit",), ("wave.synced",)),
    # 4 deliver
    "dispatch": Action("starts a task for each lane", ("engine.deliver.dispatch.Dispatcher.deliver",)),
    "dispatch.double": Action("a second task of a lane starts", ("engine.deliver.sending.Pass.__call__",), fault=True),
    "claim": Action("claims the chunk", (f"{_JOURNAL}.claim",), ("deliver.claimed",)),
    "look": Action("looks whether its pass is open", (f"{_JOURNAL}.open_for",)),
    "hold": Action(
        "holds back deletes: an upsert of their family was not delivered",
        (f"{_SENDING}._note_waiting", "engine.send_order.FamilyOrder.waiting"),
    ),
    "send": Action("sends, all is well", (f"{_SENDING}._send", f"{_SENDING}._send_once"), ("deliver.sent",)),
    "send.transient": Action(
        "sends; one row is answered with transient: nothing took effect",
        ("destinations.base.Outcome.transient", "engine.deliver.turn.row_result"),
        ("deliver.sent",),
        fault=True,
    ),
    "send.refused": Action(
        "sends; one row is refused for good",
        ("destinations.base.Outcome.permanent", "engine.deliver.turn.row_result"),
        ("deliver.sent",),
        fault=True,
    ),
    "send.raised": Action(
        "sends; nothing takes effect, an exception comes back",
        (f"{_SENDING}._write_or_split",),
        ("deliver.sent",),
        fault=True,
    ),
    "send.half": Action(
        "sends; some of it takes effect, an exception comes back",
        (f"{_SENDING}._write_or_split",),
        ("deliver.sent",),
        fault=True,
    ),
    "send.down": Action(
        "sends; the destination is down: a universal error",
        ("engine.deliver.turn.is_universal",),
        ("deliver.sent",),
        fault=True,
    ),
    "send.hung": Action(
        "sends, and is given up before an answer comes",
        ("engine.deliver.turn.ThreadCaller.call", "engine.deliver.sending.Pass.__call__"),
        ("deliver.sent", "deliver.hung"),
        fault=True,
    ),
    "send.landed": Action("what was given up takes effect after all"),
    "note": Action("notes what came of the chunk", (f"{_JOURNAL}.publish",), ("deliver.noted",)),
    "publish": Action(
        "publishes a result that names a ledger file",
        (f"{_SENDING}._write_part", f"{_SENDING}._publish"),
        ("deliver.part", "deliver.result"),
    ),
    "deliver.done": Action("all lanes have returned", ("engine.run.Run._deliver_and_settle",), ("deliver.done",)),
    "deliver.late": Action(
        "goes on while a worker is still at it", ("engine.deliver.dispatch.Dispatcher._wait",), fault=True
    ),
    # 5 settle
    "close": Action("closes the pass", (f"{_JOURNAL}.close",), ("settle.closed",)),
    "read": Action("reads the journal", (f"{_SETTLE}.read_fold",)),
    "ledger": Action(
        "commits the ledger",
        (f"{_SETTLE}.Repairer.__call__", f"{_SETTLE}._commit_ledger"),
        ("settle.repair", "settle.repaired", "ledger.logged", "ledger.synced"),
    ),
    "documents": Action("commits the documents", (f"{_SETTLE}.settle",), ("documents.logged", "documents.synced")),
    "trim": Action("trims the journal", (f"{_JOURNAL}.trim",), ("settle.trimmed",)),
    "outbox": Action(
        "commits the outbox",
        (f"{_SETTLE}.rewrite", f"{_SETTLE}.settle"),
        ("settle.rewrite", "settle.rewritten", "outbox.logged", "outbox.synced"),
    ),
}

NOT_MODELLED: Final[dict[str, str]] = {
    "create.table": "making a state: nothing is in it yet",
    "create.state": "making a state: nothing is in it yet",
    "plan.kept": "what a plan is, is not modelled",
    **dict.fromkeys(
        (
            "version.fenced",
            "version.logged",
            "version.synced",
            "version.synced",
            "version.built",
            "version.staged",
            "version.adopted",
        ),
        "a state that carries on from an older version's is not modelled",
    ),
    "command.queued": "a person's word is not modelled",
    "command.staged": "a person's word is not modelled",
    "command.done": "a person's word is not modelled",
    **dict.fromkeys(
        ("outdated.staged", "outdated.logged", "outdated.synced"),
        "only the last row of a document is modelled: dropping others changes nothing",
    ),
    **dict.fromkeys(
        ("compact.staged", "compact.logged", "compact.synced", "compact.removed"),
        "files are not modelled, only the rows in them: merging files changes no row",
    ),
    **dict.fromkeys(
        ("checkpoint.made", "checkpoint.trimmed"),
        "logs are not modelled, only what they come to: a checkpoint changes nothing of that",
    ),
    **dict.fromkeys(
        ("counted.staged", "counted.kept", "counted.logged", "counted.synced"),
        "what is counted for questions is not modelled: no delivery depends on it",
    ),
    "runs.kept": "which runs there were is not modelled: no delivery depends on it",
    **dict.fromkeys(("notify.sent", "notify.kept"), "who is told is not modelled: no delivery depends on it"),
}
"""Crash points that no action names, and why."""
