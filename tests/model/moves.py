"""What the steps of drivers share: where a driver is after a step, and its name in a trace."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.actions import Step
from tests.model.state import (
    Driver,
    State,
)

Moves = Iterator[tuple[Step, State]]


def name(driver: Driver) -> str:
    return f"driver {driver.epoch}"


def rest(driver: Driver) -> Driver:
    """Between waves; the next slice of the listing, if there is one."""
    at = "transform" if driver.taken_up else "idle"
    return Driver(at, driver.epoch, driver.wave, driver.overtaken, driver.taken_up)


def moved(state: State, i: int, driver: Driver) -> State:
    """The world with this driver in its place."""
    return state._replace(drivers=(*state.drivers[:i], driver, *state.drivers[i + 1 :]))
