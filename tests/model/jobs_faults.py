"""What is explored of a job, and faults that are put into its rules on purpose: each must break a promise."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.model.jobs import Budget, Config

ONE: Final = (0, 0)
"""Two threads of one process."""
TWO: Final = (0, 1)
"""A thread in each of two processes."""
THREE: Final = (0, 0, 1)

CONFIGURATIONS: Final = tuple(
    Config(f"{name}: {store}", processes, budget, atomic)
    for store, atomic in (("ZooKeeper", False), ("SQLite", True))
    for name, processes, budget in (
        ("nothing goes wrong", THREE, Budget()),
        ("kills", THREE, Budget(kills=2)),
        ("lost sessions", THREE, Budget(sessions=2)),
        ("kills and lost sessions", ONE, Budget(kills=1, sessions=1)),
        ("an operator unlocks", THREE, Budget(unlocks=2)),
        ("an operator fails it", TWO, Budget(fails=2)),
        ("an operator, and a kill", TWO, Budget(kills=1, unlocks=1, fails=1)),
        ("others change it", TWO, Budget(others=2, unlocks=1)),
        ("another tool removes the lock", TWO, Budget(tools=2)),
        ("another tool moves the job", THREE, Budget(strays=1, unlocks=1)),
    )
)


class Fault(NamedTuple):
    """A fault, the smallest world that shows it, and the promise that it breaks first."""

    name: str
    breaks: str
    world: Config

    @property
    def config(self) -> Config:
        return self.world._replace(fault=self.name, name=self.name)


def _of(processes: tuple[int, ...], budget: Budget, *, atomic: bool = False) -> Config:
    return Config("", processes, budget, atomic)


FAULTS: Final = (
    Fault("an unlock takes away what the session has", "J3", _of(ONE, Budget())),
    Fault("only that a lock is there", "J1", _of(TWO, Budget(unlocks=1))),
    Fault("only that the session lives", "J1", _of(TWO, Budget(unlocks=1), atomic=True)),
    Fault("no version is checked", "J1", _of(ONE, Budget(unlocks=1))),
    Fault("an operator's unlock leaves no trace", "J1", _of(TWO, Budget(unlocks=1))),
    Fault("who finds another state keeps the lock", "J4", _of(ONE, Budget(strays=1))),
    Fault("a move starts from whatever state it finds", "J2", _of(ONE, Budget(strays=1))),
    Fault("who gave it back may go on", "J1", _of(ONE, Budget())),
    Fault("the state is that before the lock", "J2", _of(ONE, Budget())),
    Fault("a move is sent in the session that there is", "J1", _of(ONE, Budget(sessions=1))),
    Fault("others of the session come between lock and look", "J1", _of(ONE, Budget(unlocks=1))),
    Fault("others need no lock", "J1", _of(ONE, Budget(others=1))),
    Fault("a lock outlives its session", "J4", _of(ONE, Budget(kills=1))),
)
