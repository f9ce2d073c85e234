"""What the steps of drivers share: where a driver is after a step, and its name in a trace."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.actions import Step
from tests.model.state import Config, Driver, Fold, Staging, State

Moves = Iterator[tuple[Step, State]]


def name(driver: Driver) -> str:
    return f"driver {driver.epoch}"


def rest(config: Config, driver: Driver) -> Driver:
    """Between waves; the next slice of the listing, if there is one, which may have been transformed ahead."""
    if driver.ahead:
        return take(config, driver._replace(fold=Fold(), work=()), driver.ahead[0])
    at = "transform" if driver.taken_up else "idle"
    return Driver(at, driver.epoch, driver.wave, driver.overtaken, driver.taken_up)


def take(config: Config, driver: Driver, staging: Staging) -> Driver:
    """This is what the next wave commits, if there is anything in it."""
    driver = driver._replace(taken_up=driver.taken_up[config.slice :], staged=(), ahead=())
    if not staging.documents:
        return rest(config, driver)
    return driver._replace(at="commit", staged=(staging,))


def moved(state: State, i: int, driver: Driver) -> State:
    """The world with this driver in its place."""
    return state._replace(drivers=(*state.drivers[:i], driver, *state.drivers[i + 1 :]))
