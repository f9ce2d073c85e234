"""Walks: what a task may make of the entries that it reads, and where it finds that a log has to wait."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.queues.world import ERRORS, OUT, STEP, Driver, Head, Message, QueueConfig, Staging, State

TRANSIENT, PERMANENT = "transient", "permanent"


def walks(config: QueueConfig, state: State, driver: Driver) -> Iterator[tuple[str, Staging, State]]:
    """Each thing that a walk may come to, and the action that it is: all is well, or one entry fails."""
    yield "walk", _walk(config, state, driver, -1, ""), state
    if not state.budget.faults:
        return
    spent = state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
    for kind in (TRANSIENT, PERMANENT):
        if kind in config.answers:
            for entry in driver.entries:
                staging = _walk(config, state, driver, entry, kind)
                yield f"walk.{kind}", staging, _appended_at_once(config, spent, staging)


def _walk(config: QueueConfig, state: State, driver: Driver, bad: int, kind: str) -> Staging:
    """All entries are walked, also behind one that has to wait."""
    rows: list[tuple[int, int, str]] = []
    waits: list[tuple[int, int]] = []
    failed: tuple[int, ...] = ()
    blocked, stops = Head(), False
    for entry in driver.entries:
        attempt = _attempts(state, entry) + 1
        if entry != bad:
            rows.append((entry, OUT, ""))
        elif kind == TRANSIENT and attempt < config.attempts:
            if config.ordered and config.mutation != "an ordered log passes over what waits":
                blocked = Head(entry, attempt)
                continue
            waits.append((entry, attempt))
            continue
        elif config.on_error == "stop":
            if state.stop.entry == entry and state.stop.passed:
                failed = (entry,)
            else:
                blocked, stops = Head(entry, attempt), True
            continue
        else:
            rows.append((entry, ERRORS, STEP))
            if config.mutation == "an error message does not end its entry":
                waits.append((entry, 1))
                continue
        if driver.retries:
            waits.append((entry, 0))
    return Staging(tuple(rows), tuple(waits), blocked, stops, failed)


def _attempts(state: State, entry: int) -> int:
    """How often it has failed."""
    return state.head.attempt if state.head.entry == entry else dict(state.waits).get(entry, 0)


def _appended_at_once(config: QueueConfig, state: State, staging: Staging) -> State:
    """Mutation: the worker appends an error message when the step fails, before anything is committed."""
    if config.mutation != "an error message is appended when the step fails":
        return state
    out, errors = state.queues
    said = tuple(Message(-1, entry) for entry, into, _ in staging.rows if into == ERRORS)
    return state._replace(queues=(out, errors._replace(messages=errors.messages + said)))
