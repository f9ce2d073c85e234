"""Transform: the attempts that a driver's wave may take, and what each of them makes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import settling
from tests.model.actions import Step
from tests.model.moves import Moves, moved, name, take
from tests.model.state import GONE, Config, Driver, Known, Staging, State


def is_due(config: Config, state: State, document: int) -> bool:
    """Has it changed, or is it owed?"""
    known = state.known[document]
    return _version(config, state, document) != _last(state, document) or (known is not None and known.owed)


def _version(config: Config, state: State, document: int) -> str:
    return config.histories[document][state.source[document]]


def _last(state: State, document: int) -> str:
    known = state.known[document]
    return GONE if known is None else known.version


def transform(config: Config, state: State, i: int, driver: Driver) -> Moves:
    """One attempt, or two: each reads what is there now. The files of one are taken."""
    if len(driver.staged) < 2 and (not driver.staged or state.budget.doubles):
        for staging in _tries(config, state, driver):
            after = moved(state, i, driver._replace(staged=(*driver.staged, staging)))
            if config.mutation == "documents are published before the commit":
                after = settling.with_known(after, staging.documents)
            if driver.staged:
                after = after._replace(budget=after.budget._replace(doubles=after.budget.doubles - 1))
            again = "transform.again" if driver.staged else "transform"
            if staging.fault:
                after = after._replace(budget=after.budget._replace(faults=after.budget.faults - 1))
                again = f"transform.{staging.fault}"
            yield Step(again, name(driver)), after
    for staging in driver.staged:
        yield Step("transform.done", name(driver)), moved(state, i, _chosen(config, driver, staging))


def transform_ahead(config: Config, state: State, i: int, driver: Driver) -> Moves:
    """One attempt at the next wave, while this one is delivered and settled."""
    if not driver.ahead and driver.taken_up:
        for staging in _tries(config, state, driver):
            after = moved(state, i, driver._replace(ahead=(staging,)))
            if staging.fault:
                after = after._replace(budget=after.budget._replace(faults=after.budget.faults - 1))
            yield Step("transform.ahead", name(driver)), after


def _tries(config: Config, state: State, driver: Driver) -> Iterator[Staging]:
    """What an attempt may make: a step may make other children each time."""
    for children in config.families:
        yield _stage(config, state, driver, children, fails=False)
        if "step" in config.answers and state.budget.faults:
            staging = _stage(config, state, driver, children, fails=True)
            if any(known.owed for _, known in staging.documents):
                yield staging._replace(fault="failed")
    if "away" in config.answers and state.budget.faults:
        staging = _stage(config, state, driver, (), fails=False, away=True)
        if any(known.away for _, known in staging.documents):
            yield staging._replace(fault="away")


def _stage(
    config: Config, state: State, driver: Driver, children: tuple[str, ...], *, fails: bool, away: bool = False
) -> Staging:
    """Bytes are hashed as they are read: what has changed since the listing is taken as it is now."""
    found: list[tuple[int, Known]] = []
    rows: list[tuple[int, str, int, str]] = []
    for document in driver.taken_up[: config.slice]:
        if not is_due(config, state, document) and config.mutation != "a listing outlives its driver":
            continue
        version, last = _version(config, state, document), state.known[document]
        if config.mutation == "a listing outlives its driver" and last is not None:
            known = last._replace(version=version)
            upserts, gone = [""], []
        elif away and version != GONE:
            known, upserts, gone = _held(config, version, last), [], []
        elif last is not None and last.owed and not last.away and version == last.version:
            known, upserts, gone = _retried(config, last, children)
        else:
            known, upserts, gone = _walked(config, version, last, children, fails=fails)
        found.append((document, known))
        rows += [(document, version, known.revision, member) for member in upserts]
        out = version if config.mutation == "a delete has the hash of what it takes back" else GONE
        rows += [(document, out, known.revision, member) for member in gone]
    return Staging(tuple(found), (driver.epoch, len(driver.staged)), tuple(rows))


Made = tuple[Known, list[str], list[str]]
"""What is known from now on; members to send, members to take out."""


def _walked(config: Config, version: str, last: Known | None, children: tuple[str, ...], *, fails: bool) -> Made:
    """A new version, its whole way: what the old one gave and it does not make goes; what failed keeps its old one, and
    lets nothing go before it is tried again."""
    before = () if last is None else last.given
    revision = _revision(version, last)
    fails = fails and version != GONE
    made = () if version == GONE else children if fails else ("", *children)
    stays = tuple(member for member in before if fails and not member)
    gone = [member for member in before if member not in made and member not in stays]
    if config.mutation == "a new version takes nothing back" and version != GONE:
        gone = []
    stale: list[str] = []
    if fails and config.mutation != "a family that failed in part takes back":
        stale, gone = gone, []  # what is made of it in the end is not known yet
    return Known(version, revision, (*stays, *stale, *made), owed=fails, stale=tuple(stale)), list(made), gone


def _held(config: Config, version: str, last: Known | None) -> Known:
    """Something is away: nothing is made of this version, nothing of the last one is taken back, and all is owed."""
    given = () if last is None or config.mutation == "an outage forgets what was given" else last.given
    return Known(version, _revision(version, last), given, owed=True, away=True)


def _revision(version: str, last: Known | None) -> int:
    """What waits for something that was away has its revision already."""
    if last is None:
        return 1
    return last.revision if last.away and version == last.version else last.revision + 1


def _retried(config: Config, last: Known, children: tuple[str, ...]) -> Made:
    """The document itself goes on. Children that were given are let go if they are made again, else they go; new ones
    are let go too."""
    gone = [member for member in last.given if member and member not in children]
    stays = tuple(member for member in last.given if member and member not in gone)
    if config.mutation == "a retry takes nothing back":
        gone = []
    again = [member for member in stays if member in last.stale]
    return last._replace(given=("", *stays), owed=False, stale=()), ["", *again], gone


def _chosen(config: Config, driver: Driver, staging: Staging) -> Driver:
    if config.mutation == "the files of both attempts are taken":
        documents = tuple(row for each in driver.staged for row in each.documents)
        rows = tuple(row for each in driver.staged for row in each.rows)
        staging = staging._replace(documents=documents, rows=rows)
    return take(config, driver, staging)
