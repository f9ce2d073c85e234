"""A new version of a plan continues from the state of an older one, and from its deliveries.

``migrate`` makes the new state, before anything runs:

1. become the older state's driver, and finish what it left
2. fence it: from now on nobody drives it any more
3. build the new state in its place, but for state.json, with the older one's data files and its positions in logs
4. give it its state.json, which makes it one; until then the older state is held, so that only one makes it

A crash before 4 leaves what the same command builds on; and, after 2, a state from which only this version may
migrate. Nothing is removed on the way: a run that slept meanwhile might remove what is in use. The first wave of the
new state is ``engine.migration``'s.
"""

from __future__ import annotations

from ferryman import crash
from ferryman.engine import commands
from ferryman.engine.intakes import recover_intake
from ferryman.engine.settle.settle import in_process, settle
from ferryman.errors import UsageError
from ferryman.operations import carried_keys
from ferryman.plan import Plan, logs_read
from ferryman.plan.structure import keyed_of
from ferryman.state.commands import waiting
from ferryman.state.identity import IDENTITY, sender_of
from ferryman.state.layout import MIGRATED, MIGRATION, NOTIFIED, PASSED
from ferryman.state.log_positions import RANGES, LogPositions, reader_of
from ferryman.state.state import SEQUENCE, SETTLED, WAVE, State
from ferryman.storage import files, seals
from ferryman.storage.files import StatePath
from ferryman.storage.links import carry_table
from ferryman.storage.lock import take_lock


def migrate(root: StatePath, plan: Plan, from_version: int) -> None:
    """Make the state of a plan from the one of an older version; nothing if that was done before.

    Raises:
        UsageError: there is no such state, it is not an older one, this version has a state of its own, or a state by
            key cannot be carried over.
        StateHeld, StateDamaged, StateForeign: of the older state, or what is in the new one's place is not a state.
    """
    older = Plan(plan.name, from_version)
    older_root = root.parent / older.key
    if from_version >= plan.version:
        raise UsageError(f"--from-version {from_version}: this is version {plan.version}: give an older one.")
    if files.exists(root / IDENTITY):
        if State(root, plan).identity().get("from") != from_version:
            raise UsageError(
                f"{root}: version {plan.version} has a state of its own. To continue with it, leave out --from-version."
            )
        return
    if not files.exists(older_root / IDENTITY):
        raise UsageError(f"{older_root}: there is no state of version {from_version}. Give the version that ran here.")
    State(root, plan).refuse_foreign_folder()
    with State.take(older_root, older, successor=plan.version) as old:  # 1
        if files.exists(root / IDENTITY):  # made by another who was faster
            return
        if old.wave > old.settled:
            settle(old, old.wave, in_process, plan)
        recover_intake(old, in_process, plan)
        begun = files.exists(old.root / MIGRATED)
        carried_keys.refuse_unfit(old, plan, begun=begun)
        if not keyed_of(old.remembered()):  # else there is none, or it came when we had begun
            for command in waiting(old):
                commands.apply(old, command)
        old.check_ours()
        old.close_for(plan.version)  # 2
        crash.point("version.fenced")
        old.check_ours()  # whoever announces itself after this look finds the state closed
        _make(old, State(root, plan), from_version)


def _make(old: State, new: State, from_version: int) -> None:
    files.make_folder(new.root)
    lock = take_lock(new.root / "lock")
    try:
        if new.exists:
            raise _had_another(new)
        _build(old, new, from_version)  # 3
        crash.point("version.built")
        new.publish_identity()  # 4
    finally:
        lock.release()


def _build(old: State, new: State, from_version: int) -> None:
    """The new state's folder: made as ever, then filled with the older one's data files in one commit a table. All of
    it may be done again."""
    readers = [
        reader_of(old, name) for name, node in old.remembered().items() if node.kind in ("source", "join", "alts")
    ]
    sender = sender_of(old.root)._asdict()
    more = {"from": from_version, "readers": readers, "sender": sender, **carried_keys.remembered_of(old, new.plan)}
    wave = old.wave
    new.create(more, remembered=old.remembered(), named=False)
    for table in new.tables:
        table.log.mend()
    new.journal.close(wave)
    new.load()
    files.publish(new.root / MIGRATION, seals.sealed({"from": from_version}))
    new.announce(after=old.epoch)  # the files that it gets are named after that one's epochs
    if new.exists:  # by another one, while this one slept; from now on one of the two can commit
        raise _had_another(new)
    numbers = {SETTLED: wave}
    carry_table(old.ledger, new.ledger, numbers)
    carry_table(old.documents, new.documents, numbers)
    carried_keys.carry(old, new)
    sequence = max(old.next_sequence, new.next_sequence)
    transactions = {**numbers, WAVE: wave, SEQUENCE: sequence, **_positions(old, new.plan)}
    carry_table(old.outbox, new.outbox, transactions)
    for name in (NOTIFIED, PASSED):  # the waves' numbers go on: nobody is told of the past again
        if files.exists(noted := old.root / name):
            files.publish(new.root / name, files.read(noted))


def _positions(old: State, plan: Plan) -> dict[str, int]:
    """How far the older version has read the logs that this one has under the same names. The logs are not asked: one
    that is away is read on where it was, like the others."""
    names = {node.name for node in logs_read(plan.nodes)} | carried_keys.ever_keyed(old)
    logs = [LogPositions(old, name) for name in sorted(names)]
    found = {key: number for log in logs for key, number in log.all_transactions().items()}
    return {**found, RANGES: ranges} if (ranges := old.outbox.number(RANGES)) else found


def _had_another(new: State) -> UsageError:
    return UsageError(f"{new.root}: version {new.plan.version} was given a state by another run just now.")
