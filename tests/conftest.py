"""Servers for the tests that need a real one."""

from __future__ import annotations

import argparse
import atexit
import functools
import gc
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.servers.registry import Running
from tests.servers.server import Server
from tests.support import forked_servers, resume, schedule
from tests.support.tiers import covering, missing

# Spark starts in half the time: what the second compiler makes faster, no test does long enough.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A virtual machine whose host is busy takes milliseconds to hand a task from one core to another, and a query engine,
# a table's log and a JVM do that all the time: a worker of xdist and its children stay on their share of the cores.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _WORKERS, _WORKER = int(os.environ["PYTEST_XDIST_WORKER_COUNT"]), int(os.environ["PYTEST_XDIST_WORKER"][2:])
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, _CORES[_WORKER % len(_CORES) :: _WORKERS])

# Tests write a hundred thousand small files and sync each. In memory, where there is room, that costs nothing.
_MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 6 << 30:
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None  # it is looked up again

# Commands that were started with nohup go on when their terminal is closed; those of tests are not, whoever runs them.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test may depend on the machine's speed. In CI the same examples are drawn each time.
gc.disable()  # until all tests are collected: it would look for garbage in what stays

hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True, scope="session")
def _quick_fork_servers() -> None:
    """They are forked, not started; and not ahead: a command that a test calls in this process would start one that
    nobody takes where a runner is given."""
    from ferryman.engine.runner import fork_server

    fork_server.start_ahead = lambda: None
    forked_servers.ready()
    forked_servers.install()


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[str], Server]]:
    """``server("opensearch")``: a running server of this worker's own. See the docstring of tests/servers."""
    with Running() as running:
        yield running.get


class _AtOnce:
    """Shows each failure as soon as it is known: a run that is stopped before its end shows no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nFAILED at {report.when}: {report.nodeid}\n{report.longreprtext[-3000:]}")


def pytest_configure(config: pytest.Config) -> None:
    """Failures are shown by the process that a person looks at."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_AtOnce(config))
    resume.begin(config)


LONG = (
    *(
        "crash",
        "engine",
        "account",
        "matrix",
        "model",
        "state",
        "queues",
        "intake/service",
        "cli",
        "notify",
        "destinations",
    ),
    *("remembered", "retrieval", "monitoring", "proof", "dashboard", "packaging", "kafka"),
    *("docs/test_how_to.py", "docs/test_connectors.py", "docs/test_site.py", "docs/test_guarantees.py"),
    *("docs/test_blocks.py", "docs/test_sites_and_repositories.py", "docs/test_databases.py", "docs/test_state.py"),
    *("docs/test_plans.py", "docs/test_examples.py", "docs/test_bad_input.py"),
    *("plan/test_pictures.py", "plan/test_reach.py", "plan/test_check_by_chance.py", "plan/test_check_warnings.py"),
    *("intake/test_sessions.py", "intake/test_one_list.py", "intake/test_races.py", "intake/test_owners"),
    *("sources/test_changes_log.py", "sources/test_dlt.py", "sources/test_dlt_reports.py", "sources/test_git.py"),
    *("sources/test_table_changes.py", "sources/test_source_packed.py", "sources/test_mailbox.py"),
    *("sources/test_inotify.py", "steps/test_mail.py", "steps/test_main_text.py", "testing/test_proxy.py"),
    *("steps/test_extract.py", "steps/test_all.py", "steps/test_embed.py", "steps/test_unpack.py"),
    *("steps/test_fetch", "servers/test_servers.py"),
    *("storage/test_object_stores.py", "storage/test_lock.py", "test_refusing_disks.py", "test_expressions.py"),
    *("test_adoption.py", "test_verification.py", "test_verify_seeded.py", "test_public_reports.py", "test_bench.py"),
)
"""Tests of whole runs, and others that take long, by folder or file; so do those that need Spark or a server."""

EACH_TIME = (
    *("crash/test_matrix.py", "crash/test_branching.py", "crash/test_keyed.py"),
    *("crash/test_queue_matrix.py", "crash/test_once_matrix.py", "remembered/test_kills.py", "queues/test_crash.py"),
    "docs/test_guarantees.py",
)
"""Files of which ``--each-rule`` leaves nothing out: they kill at each crash point, or ask for a test of each rule."""


FILE_PARTS = 10
"""A sample of one test in a multiple of so many is a part of the tests in one of so many files: the other files are not
even imported."""


def _is_by_file(config: pytest.Config) -> bool:
    return config.getoption("--sample")[1] % FILE_PARTS == 0 and not config.getoption("--each-rule")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that a sample has no tests of, unless they are named."""
    if collection_path.suffix != ".py" or not _is_by_file(config) or not _is_in(collection_path, LONG):
        return None
    part, _ = config.getoption("--sample")
    return zlib.crc32(_place(collection_path).encode()) % FILE_PARTS != (part - 1) % FILE_PARTS or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what talks to a server; with ``--sample K/N`` leave out all but a part of what takes long; sort the rest."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)
    part, parts = config.getoption("--sample")
    if parts > 1:
        long = [i for i in items if _is_long(i)]
        if _is_by_file(config):
            part, parts = (part - 1) // FILE_PARTS + 1, parts // FILE_PARTS
        chosen = {i for i in long if zlib.crc32(i.nodeid.encode()) % parts == part - 1}
        if config.getoption("--each-rule"):
            chosen |= {i for i in long if _is_in(i.path, EACH_TIME)}
            chosen |= missing(items, {*items} - {*long} | chosen)
        left_out = {*long} - chosen
        config.hook.pytest_deselected(items=[i for i in long if i in left_out])
        items[:] = [i for i in items if i not in left_out]
    resume.leave_out(config, items)
    schedule.in_turn(items)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make no tests of the thousands of slow cases that would be deselected; nor, of whole runs, of all cases where
    parametrizations multiply each other."""
    expression = metafunc.config.option.markexpr
    if expression.startswith("not slow") and " or " not in expression:
        calls = metafunc._calls
        left = [call for call in calls if all(mark.name != "slow" for mark in call.marks)]
        calls[:] = left or calls[:1]  # without a call it would be a test without parameters
        if _is_long(metafunc.definition) and not metafunc.definition.get_closest_marker("every_case"):
            calls[:] = [calls[n] for n in covering([call.indices for call in calls])]


def pytest_collection_finish() -> None:
    """Garbage is not looked for in what stays until the end, nor is that copied in forked children for it."""
    gc.freeze()
    gc.set_threshold(20_000)  # a run makes some thousand objects, few of them garbage that is not freed at once
    gc.enable()
    atexit.register(gc.unfreeze)  # native modules complain of what is still there when Python ends


WATCHED = ("AWS_", "FERRYMAN_", "JAVA_", "OPENLINEAGE_", "OTEL_")
"""Beginnings of variables that tests set. Libraries set others when they are loaded, until the process ends."""

ENVIRONMENT = {forked_servers.FOLDER, "PYTEST_CURRENT_TEST", "PYTHONPATH"}
"""Variables that stay when they were set, for all tests of this process."""

_environments: dict[Path, dict[str, str]] = {}
"""The environment as a file of tests found it."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path not in _environments:
        _environments[item.path] = _environment()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A file of tests leaves the environment as it was: the tests after it would pass or fail by the order of files."""
    yield
    if nextitem is None or nextitem.path != item.path:
        before, now = _environments.pop(item.path), _environment()
        differing = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        changed = sorted(name for name in differing if name in before or name.startswith(WATCHED))
        assert not changed, f"{item.path.name} leaves changed variables in the environment: {', '.join(changed)}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails says how its servers are: one that has ended explains what a client says."""
    outcome: Any = yield
    get = getattr(item, "funcargs", {}).get("server")
    if outcome.get_result().failed and isinstance(running := getattr(get, "__self__", None), Running):
        outcome.get_result().sections.append(("servers", running.describe()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """For ``--dist loadfile``."""
    return schedule.LongestFirst(config, log) if config.option.dist == "loadfile" else None


def _is_long(item: pytest.Item) -> bool:
    needs_more = item.get_closest_marker("spark") or item.get_closest_marker("server")
    return needs_more is not None or _is_in(item.path, LONG)


@functools.cache
def _is_in(path: Path, places: tuple[str, ...]) -> bool:
    return _place(path).startswith(places)


def _place(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).as_posix()


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError("the part K of N parts is written K/N")
    return int(part), int(parts)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample", type=_part, default="1/1", metavar="K/N", help="of the tests that take long run part K of N"
    )
    parser.addoption(
        "--each-rule", action="store_true", help="with --sample also a test of each rule, each server and crash point"
    )
    parser.addoption(
        "--resume", type=Path, metavar="FILE", help="leave out the tests that FILE names; add to it those that pass"
    )
    parser.addoption(
        "--run-quorum", action="store_true", help="also test three ZooKeeper servers that lose their leader"
    )
