"""Rules of the protocol that a proof can break on purpose, to show that it would find it.

The engine knows nothing of this. In the processes of a proof, and only with ``--break``, one function of it is replaced
by another that leaves the rule out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ferryman import verification
from ferryman.destinations.base import Delivery, Outcome
from ferryman.engine import settle
from ferryman.engine.deliver.sending import FileDelivery
from ferryman.engine.run import Run
from ferryman.engine.scan import phase
from ferryman.errors import UsageError
from ferryman.proof.twins import RecorderTwin
from ferryman.queues import Queue
from ferryman.records.rows import RowResult, Status, now_us
from ferryman.state.journal import Journal
from ferryman.storage import locks
from ferryman.storage.tables import Table


class Rule(NamedTuple):
    """A rule, and how it is broken.

    Attributes:
        broken: what happens when it is broken.
        kinds: faults that show it.
        break_it: breaks it for the rest of this process.
    """

    broken: str
    kinds: tuple[str, ...]
    break_it: Callable[[], None]


def _replace(owner: Any, name: str, function: Any) -> None:
    setattr(owner, name, function)


def remove_lock() -> None:
    """Have the lock of a state keep nobody out, as on a file system whose locks do not work."""

    class NoLock:
        def note(self, what: object) -> None: ...

        def release(self) -> None: ...

    _replace(locks.Lock, "take", classmethod(lambda cls, path: NoLock()))


def _ignore_epochs() -> None:
    plain = Table._commit

    def commit(table: Table, entry: Any, *, announcing: bool = False, **options: Any) -> None:
        if not announcing and table._fence is not None:
            table.log.refresh()
            application = table._fence[0]
            table.version = table.log.version
            table._fence = application, table.log.transactions.get(application, 0)
        plain(table, entry, announcing=announcing, **options)

    _replace(Table, "_commit", commit)


def _do_not_claim() -> None:
    _replace(Journal, "claim", lambda journal, number, rows, eligible=None: True)


def _send_again_what_is_in_doubt() -> None:
    plain = settle._unknown_results

    def results(*arguments: Any) -> list[RowResult]:
        return [RowResult(each.row, Status.ERROR, each.message, each.attempt, now_us()) for each in plain(*arguments)]

    _replace(settle, "_unknown_results", results)


def _take_silence_for_success() -> None:
    def write(delivery: FileDelivery, chunk: list[Delivery]) -> list[Outcome]:
        turn = delivery.turn
        answered = list(turn.call(turn.node.destination.write, [*chunk]) or ())
        return answered + [Outcome.ok()] * (len(chunk) - len(answered))

    _replace(FileDelivery, "_write", write)


def _take_outages_for_success() -> None:
    plain = FileDelivery._write

    def write(delivery: FileDelivery, chunk: list[Delivery]) -> list[Outcome] | None:
        try:
            return plain(delivery, chunk)
        except ConnectionError:
            return None

    _replace(FileDelivery, "_write", write)


def _drop_what_was_refused() -> None:
    def keep(rows: pa.Table, latest: dict[str, tuple[Any, ...]]) -> pa.Table:
        return rows.slice(0, 0)

    _replace(settle, "_rows_to_keep", keep)


def _change_hashes() -> None:
    plain = FileDelivery._make_deliveries

    def make(delivery: FileDelivery, start: int, end: int) -> list[Delivery]:
        made = plain(delivery, start, end)
        for each in made:
            each.hash = uuid.uuid4().hex
        return made

    _replace(FileDelivery, "_make_deliveries", make)


def _forget_hashes() -> None:
    def append_new(queue: Queue, rows: pa.Table, writer: str, settled: int = 0) -> int:
        return len(queue.append_rows(rows.select(["message", "meta", "hash"])))

    def keeps_hash(recorder: RecorderTwin, digest: str, hashes: Collection[str]) -> bool:
        return False

    _replace(Queue, "append_new", append_new)
    _replace(RecorderTwin, "keeps_hash", keeps_hash)


def _forget_the_outbox() -> None:
    plain = Run.recover

    def recover(run: Run) -> None:
        plain(run)
        run._state.outbox.files.clear()

    _replace(Run, "recover", recover)


def _trust_failed_listings() -> None:
    plain = phase.detect_changes

    def detect(listings: list[Any], *arguments: Any, **options: Any) -> Any:
        trusted = [each._replace(parts=[part._replace(failure=None) for part in each.parts]) for each in listings]
        return plain(trusted, *arguments, **options)

    _replace(phase, "detect_changes", detect)


def _repair_nothing() -> None:
    _replace(verification, "_repair", lambda *arguments: None)


def _nothing() -> None:
    """Leave the program as it is."""


DISARMED: Final = "faults"
"""Rule that a fault takes effect: broken, the proof must say that it has proved nothing."""

RULES: Final[dict[str, Rule]] = {
    "lock": Rule("a second driver is let in while the first one works", ("second",), remove_lock),
    "epoch": Rule("a driver commits without looking whether another has taken over", ("overtaken",), _ignore_epochs),
    "claim": Rule("at-most-once: a chunk is sent that was not claimed", ("hangs", "machine"), _do_not_claim),
    "doubt": Rule(
        "at-most-once: what may have been sent is sent again", ("hangs", "machine"), _send_again_what_is_in_doubt
    ),
    "outcome": Rule("a delivery without an outcome counts as delivered", ("half",), _take_silence_for_success),
    "outage": Rule("what was sent during an outage counts as delivered", ("away",), _take_outages_for_success),
    "refusal": Rule("what a destination has refused leaves the outbox", ("refuses",), _drop_what_was_refused),
    "hash": Rule("a delivery has another hash on each attempt", ("drops",), _change_hashes),
    "stored-hash": Rule("exactly-once: a destination does not keep hashes", ("drops",), _forget_hashes),
    "outbox": Rule("a start forgets what was committed and not sent", ("driver",), _forget_the_outbox),
    "listing": Rule("a listing that failed counts as complete", ("source",), _trust_failed_listings),
    "repair": Rule("verify --repair finds what is missing, and sends nothing", ("holes", "tail"), _repair_nothing),
    DISARMED: Rule("no fault takes effect, so that nothing is proved", (), _nothing),
}
"""Name -> rule."""


def check_rule(name: str) -> None:
    """Raise ``UsageError`` if there is no such rule."""
    if name and name not in RULES:
        raise UsageError(f"--break {name}: there is no such rule; there are {', '.join(RULES)}.")


def disarms(rule: str) -> bool:
    """Return whether this rule is that faults take effect."""
    return rule == DISARMED


def preferred_kinds(rule: str) -> tuple[str, ...]:
    """Return the kinds of faults that show that a rule is broken."""
    return RULES[rule].kinds if rule else ()


def break_rule(rule: str) -> None:
    """Break a rule for the rest of this process."""
    if rule:
        RULES[rule].break_it()
