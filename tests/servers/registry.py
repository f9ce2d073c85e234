"""Which servers there are, and those that run in this process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import shutil
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

import tests.servers
from tests.servers.cache import Missing
from tests.servers.server import Server


def known() -> dict[str, type[Server]]:
    """Every server by its name: each subclass of ``Server`` in a module of this folder, but for those that are made for
    another one, such as a worker of a cluster."""
    for module in pkgutil.iter_modules(tests.servers.__path__):
        if not module.name.startswith(("_", "test_")):
            importlib.import_module(f"tests.servers.{module.name}")
    return {server.name: server for server in sorted(_below(Server), key=lambda s: s.name) if _stands_alone(server)}


def _stands_alone(server: type[Server]) -> bool:
    return all(each.default is not each.empty for each in inspect.signature(server).parameters.values())


def _below(base: type[Server]) -> set[type[Server]]:
    children = set(base.__subclasses__())
    found = {child for child in children if "name" in vars(child)}
    return found.union(*(_below(child) for child in children))


class Running:
    """The servers of one test process: each started at its first use, all stopped at the end."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._missing: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._servers.values():
            server.close()

    def get(self, name: str) -> Server:
        """The running server of this name; one that a test left stopped is an error of that test."""
        if name in self._missing:
            require(self._missing[name])
        if name not in self._servers:
            server = known()[name]()
            try:
                self._servers[name] = server.__enter__()
            except Missing as e:
                self._missing[name] = f"no {name} server here: {e}"
                require(self._missing[name])
        found = self._servers[name]
        assert found.running, f"a test before this one left {name} stopped"
        return found

    def describe(self) -> str:
        """Say how each of them is now."""
        return "\n\n".join(server.describe() for server in self._servers.values())


def require(why: str) -> NoReturn:
    """What a test needs is not here: skipped with the reason on a laptop, failed in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{why} (CI is set, where nothing may be skipped)", pytrace=False)
    pytest.skip(why, allow_module_level=True)


class _Package:
    """A package that is loaded when the first of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> Any:  # in a function that travels to a worker
        return _Package, (self._name,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks everything in a module whether it is a mock, or wraps a fixture
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def require_package(name: str) -> Any:
    """Return a package that a test, or all tests of a module, need; see ``require``.

    Collecting tests does not load it: each process of pytest-xdist collects all of them, and clients such as LanceDB's
    take seconds.
    """
    if importlib.util.find_spec(name) is None:
        require(f"{name} is not installed")
    return _Package(name)


def require_command(name: str) -> None:
    """Say that a test, or all tests of a module, need a command; see ``require``."""
    if not shutil.which(name):
        require(f"{name} is not installed")
