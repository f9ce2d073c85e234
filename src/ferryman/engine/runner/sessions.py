"""Spark sessions: the program's own, which is used and left as it is, and ours, which several runs may share.

A process has one Spark, whatever threads it has. A session that the program made, in any thread, is the program's: it
is used, never stopped, and its settings stay. One of ours is shared by the runs that start meanwhile, and ends with the
last of them. PySpark would give it to anyone who asks for a session (``getOrCreate``), who would then see it end. So
it is hidden, except while PySpark looks for it to build a DataFrame for us. A program that asks meanwhile gets a
session of its own on the same Spark, which then stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ferryman.engine.runner.class_sharing import java_options
from ferryman.engine.runner.launch import INTERRUPTED, Launch, check_java, name_user, workers_python
from ferryman.engine.runner.masters import check_master, shown_master
from ferryman.engine.runner.on_demand import DEFAULT_MASTER
from ferryman.engine.runner.spark_errors import describe_spark_error
from ferryman.errors import EngineError, UsageError

_INTERRUPTED: Final = 130
"""Exit code of a process that a signal has ended."""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_OPTIONS: Final = "spark.driver.extraJavaOptions"
_DEPLOY_MODE: Final = "spark.submit.deployMode"
_LOCAL_DIR: Final = "spark.local.dir"
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Variable that PySpark sets for the rest of the process: every session is one of Connect."""

_SESSION_EXISTS: Final = "the run uses the Spark session that this program already has"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a job that runs ahead must not keep the others from all cores
}


# --- the program's sessions and ours ------------------------------------------------------------------


@dataclass(eq=False)
class _OwnSession:
    """A session of ours, and its users."""

    session: Any
    runs: int = 0
    """Number of runs that use it."""
    exposed: int = 0
    """Number of DataFrames that are being built on it now."""


_lock = threading.RLock()
_own_sessions: list[_OwnSession] = []
"""The one that exists, if any: there is one Spark in a process."""


def program_session() -> Any | None:
    """Return the session that the program has made in any thread, as in a notebook; None: it has none of its own."""
    with _lock:
        session = _find_session()
        return None if any(own.session is session for own in _own_sessions) else session


def _find_session() -> Any | None:
    if is_remote():
        kind: Any = _connect_session_class()
        return kind.getActiveSession() or kind._get_default_session()
    context = SparkContext._active_spark_context
    if context is None or not _context_runs(context):
        return None
    default = SparkSession._instantiatedSession
    if any(is_alive(own.session) for own in _own_sessions):
        return default
    with contextlib.suppress(Exception):  # whatever PySpark raises of a session that ends at this moment
        return SparkSession.getActiveSession() or default or SparkSession(context)
    return None


def _connect_session_class() -> Any:
    from pyspark.sql.connect.session import SparkSession as Remote

    return Remote


def is_alive(session: Any) -> bool:
    """Return whether a session was not stopped, and its JVM exists; False also for what is not a session."""
    stopped = getattr(session, "is_stopped", None)  # Connect
    if isinstance(stopped, bool):
        return not stopped
    return _context_runs(getattr(session, "_sc", None))


def was_stopped(session: Any) -> bool:
    """Return whether a session was stopped in an orderly way; False: it runs, or its JVM has ended."""
    stopped = getattr(session, "is_stopped", None)
    if isinstance(stopped, bool):
        return stopped
    try:
        java = session._sc._jsc
        return java is None or bool(java.sc().isStopped())
    except Exception:  # py4j has many errors for a JVM that does not answer
        return False


def _context_runs(context: Any) -> bool:
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # it was stopped, and has no JVM any more; or the JVM does not answer
        return False


def runs_in_cluster_mode(session: Any = None) -> bool:
    """Return whether ``spark-submit --deploy-mode cluster`` has started this process in a container of the cluster.

    Args:
        session: a session that this process has, if any.
    """
    if session is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return False
    with contextlib.suppress(Exception):  # a session that has ended, or is none, which its use reports
        if session is not None:
            mode = session.sparkContext.getConf().get(_DEPLOY_MODE)
        else:
            SparkContext._ensure_initialized()
            mode = SparkConf().get(_DEPLOY_MODE)
        return bool(mode == "cluster")
    return False


def check_session(session: Any) -> Any:
    """Return a session that a user gives, if it can be used.

    Raises:
        UsageError: it was stopped, its JVM has ended, or it is something else.
    """
    if is_alive(session):
        return session
    if isinstance(session, type) or not hasattr(session, "createDataFrame"):
        raise UsageError(f"spark={session!r:.100}: give a SparkSession, or leave spark= out.")
    why = "was stopped" if was_stopped(session) else "has no JVM any more"
    raise UsageError(f"spark=: this Spark session {why}. Give one that runs, or leave spark= out.")


def borrow(
    master: str,
    conf: Mapping[str, str],
    name: str,
    *,
    queries: bool,
    report: Callable[[str], object],
    launch: Launch | None = None,
) -> tuple[Any, Callable[[], None]]:
    """Return a session for a run, and a function that gives it back.

    The session is the program's if it has made one meanwhile; otherwise that of other runs of this program, or a new
    one.

    Args:
        report: takes a message for each of these settings that has no effect, because the session exists already.
        launch: by which the start of a new one can be aborted.

    Raises:
        UsageError: see ``start``.
    """
    with _lock:
        if (existing := program_session()) is not None:
            for note in ignored_settings(existing, master, conf):
                report(note)
            return existing, lambda: None
        own = next((each for each in _own_sessions if is_alive(each.session)), None)
        if own is None:
            with _hold_builder_lock():
                own = _OwnSession(start(master, conf, name, queries=queries, launch=launch))
                _hide(own.session)
            _own_sessions[:] = [own]
        else:
            for note in ignored_settings(own.session, master, conf):
                report(note)
        own.runs += 1
        return own.session, partial(_give_back, own)


def _give_back(own: _OwnSession) -> None:
    """Count a run less; the last one stops the session, unless the program has one on the same Spark by now."""
    with _lock:
        own.runs -= 1
        if own.runs or own not in _own_sessions:
            return
        existing = program_session()
        _own_sessions.clear()
        if existing is None:
            stop(own.session)


@contextlib.contextmanager
def expose_session(session: Any) -> Iterator[None]:
    """Make one of our sessions the process's default within the block, since PySpark needs that to build a DataFrame.

    A default session that the program has stays.
    """
    with _lock:
        own = next((each for each in _own_sessions if each.session is session), None)
        if own is not None:
            own.exposed += 1
            _expose(session)
    try:
        yield
    finally:
        with _lock:
            if own is not None:
                own.exposed -= 1
                _hide(session, keep=bool(own.exposed))


@contextlib.contextmanager
def _hold_builder_lock() -> Iterator[None]:
    """Hold PySpark's lock within the block, so that no other thread makes a session."""
    lock: Any = getattr(type(SparkSession.builder), "_lock", None)
    with lock if lock is not None else contextlib.nullcontext():
        yield


def _expose(session: Any) -> None:
    if not isinstance(session, SparkSession):
        active = _connect_session_class()._active_session
        if getattr(active, "session", None) is None:
            active.session = session
    elif SparkSession._instantiatedSession is None:
        SparkSession._instantiatedSession = SparkSession._activeSession = session
        java: Any = SparkSession._get_j_spark_session_class(session._jvm)
        java.setDefaultSession(session._jsparkSession)
        java.setActiveSession(session._jsparkSession)


def _hide(session: Any, *, keep: bool = False) -> None:
    """Remove a session as the process's default.

    Args:
        keep: other threads are building DataFrames on it, so it stays.
    """
    if not isinstance(session, SparkSession):
        kind = _connect_session_class()
        if kind._default_session is session:
            kind._default_session = None
        if getattr(kind._active_session, "session", None) is session:
            kind._active_session.session = None
    elif SparkSession._instantiatedSession is session and not keep:
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        with contextlib.suppress(Exception):  # its JVM may have ended, which the next use reports
            java: Any = SparkSession._get_j_spark_session_class(session._jvm)
            java.clearDefaultSession()
            java.clearActiveSession()


def ignored_settings(session: Any, master: str, conf: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each setting that has no effect, because the running session has another value."""
    with contextlib.suppress(AttributeError, PySparkException):
        actual = str(session.sparkContext.master)
        if master not in (DEFAULT_MASTER, actual):
            yield f"master={shown_master(master)} has no effect: {_SESSION_EXISTS}, on {actual}"

    for key, value in conf.items():
        with contextlib.suppress(PySparkException):
            if session.conf.get(key, None) != value:
                yield f"{key}={value} has no effect: {_SESSION_EXISTS}"


# --- starting and stopping ----------------------------------------------------------------------------


def start(
    master: str, conf: Mapping[str, str], name: str, *, queries: bool = True, launch: Launch | None = None
) -> SparkSession:
    """Start a new session.

    Args:
        queries: the JVM runs queries of ``DataFrame`` sources. Without them it does little, and starts faster.
        launch: by which the start can be aborted.

    Raises:
        UsageError: Spark does not start with this master and configuration, nobody answers there, or there is no Java
            for it.
        EngineError: another thread aborted the launch.
    """
    remote = master.startswith("sc://")  # a Connect server has its own settings, so none are set here
    if remote and find_spec("grpc") is None:
        raise UsageError(
            f"--master {shown_master(master)}: Spark Connect needs more packages: pip install 'ferryman[connect]'"
        )
    if not remote and "PYSPARK_GATEWAY_PORT" not in os.environ:  # there is a JVM already
        check_java()
    if not remote:
        _check_local_dirs(conf)
    check_master(master, conf)
    builder = SparkSession.builder.appName(name)
    builder = builder.remote(master) if remote else builder.master(master)
    settings = conf if remote else _settings_of(master, conf, queries)
    for key, value in settings.items():
        builder = builder.config(key, value)
    launch = launch or Launch()
    session: SparkSession | None = None
    try:
        with (
            contextlib.nullcontext() if remote else _abort_on_signal(launch),
            launch.watch(),
            workers_python(master, conf),
        ):
            session = builder.getOrCreate()
    except Exception as e:
        if launch.aborted:  # by another thread
            raise EngineError(INTERRUPTED) from e
        raise UsageError(
            f"Spark did not start with --master {shown_master(master)}: {_explain_failed_start(e, launch.lines)}"
        ) from e
    except BaseException:  # a signal
        if session is not None:
            stop(session)
        elif remote:
            _forget_connect_session()
        raise
    with contextlib.suppress(AttributeError, PySparkException):  # Connect has no context
        session.sparkContext.setLogLevel("ERROR")
    return session


def _settings_of(master: str, conf: Mapping[str, str], queries: bool) -> dict[str, str]:
    """Return the settings of a session of ours with a JVM: those of the user, and ours where theirs leave a choice."""
    settings = {**_SETTINGS, **name_user()}
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no look-up of this machine's name, no warning about it
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings["spark.python.daemon.module"] = "ferryman.engine.runner.daemon"
    return {**settings, **conf, _OPTIONS: _java_options(conf.get(_OPTIONS, ""), local, queries)}


def _forget_connect_session() -> None:
    """Close a session of Connect whose start was interrupted; else PySpark asks its server again when this process
    ends, and waits for an answer."""
    kind = _connect_session_class()
    for session in (kind._default_session, kind.getActiveSession()):
        if session is not None:
            session.client.close()
            _hide(session)
    os.environ.pop(_CONNECT, None)


def stop(session: SparkSession) -> None:
    """End a session of our own.

    The server for accumulators, which we do not use, takes a second to end, so it ends in the background. A session
    that was stopped, or whose JVM has ended, raises nothing; Spark can be started again.
    """
    if not isinstance(session, SparkSession):
        session.stop()
        if _connect_session_class()._get_default_session() is None:
            os.environ.pop(_CONNECT, None)
        return
    if SparkContext._active_spark_context is not session._sc:
        return  # the program has stopped it, and started another
    is_lost = not is_alive(session)
    server: Any = session._sc._accumulatorServer
    if server is not None:
        end = type(server).shutdown
        server.shutdown = lambda: threading.Thread(target=end, args=(server,), daemon=True).start()
        server.handle_error = lambda *_: None  # the JVM ends meanwhile, which is not an error here
    with contextlib.ExitStack() as quiet:
        if is_lost:
            quiet.enter_context(contextlib.suppress(Exception))
            quiet.enter_context(warnings.catch_warnings(action="ignore"))
        session.stop()
    _restore_interrupt_handler()
    if is_lost:
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def _abort_on_signal(launch: Launch) -> Iterator[None]:
    """Abort the launch at a signal within the block, and then do what the signal does: a start that is only left alone
    leaves a JVM that nobody ends. A second signal ends this process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(_INTERRUPTED)
        received.append(number)
        launch.abort()

    _before_spark[:] = [signal.getsignal(signal.SIGINT)]
    numbers = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]  # as below nohup
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == receive:  # Spark has set one of its own for Ctrl-C
                signal.signal(number, handler)
        if received and callable(handler := before[signal.Signals(received[0])]):
            handler(received[0], None)
        elif received and handler is signal.SIG_DFL:
            signal.raise_signal(received[0])


_before_spark: list[Any] = []
"""Handler of Ctrl-C before Spark was started, which installs its own and leaves it there."""


def _restore_interrupt_handler() -> None:
    """Restore the handler of Ctrl-C from before Spark was started, unless it has been changed meanwhile."""
    if threading.current_thread() is not threading.main_thread() or not _before_spark:
        return  # only the main thread may set it
    before = _before_spark.pop()
    current = signal.getsignal(signal.SIGINT)
    if getattr(current, "__qualname__", "").startswith("SparkContext.") and before is not None:
        signal.signal(signal.SIGINT, before)


def _java_options(user_options: str, local: bool, queries: bool) -> str:
    log = shlex.quote(f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}")
    user_options = f"{log} {user_options}".strip()  # theirs, where both name one
    return java_options(user_options, queries=queries) if local else user_options


_LOG_ERROR: Final = re.compile(r"(?:\S+ (?:ERROR|FATAL) \w+|Exception in thread \"main\" [\w.$]+): (?P<what>.+)")
"""An error of Spark that ends its JVM: ``16:57:57 ERROR DiskBlockManager: Failed to create any local dir.``"""

_OPEN_FILES: Final = 1_024
"""Open files that are enough for Spark. With 256 its JVM cannot even load its classes."""

_JAVA_ERROR: Final = re.compile(r"(?:Error|Unrecognized|Too small|Invalid|Could not|Failed|There is insufficient).*")


def _explain_failed_start(error: Exception, jvm_lines: Iterable[str]) -> str:
    """Return why Spark did not start; if its JVM has ended, by its last lines."""
    if not isinstance(error, OSError | Py4JError) and "JAVA_GATEWAY_EXITED" not in str(error):
        return describe_spark_error(error)
    if isinstance(error, Py4JJavaError):
        return describe_spark_error(error)
    lines = [line.strip() for line in jvm_lines if not line.startswith(("\t", " "))]
    of_log = [match["what"] for line in lines if (match := _LOG_ERROR.fullmatch(line))]
    of_java = [line for line in lines if _JAVA_ERROR.fullmatch(line) and not line.startswith("Error: Could not create")]
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if of_log or of_java:
        why = f"its JVM ended: {' '.join(of_log[-1:] or of_java[-2:])}"
    elif isinstance(error, OSError) or "JAVA_GATEWAY_EXITED" not in str(error):
        why = "its JVM has ended. Start this program again"
    else:
        why = f"its JVM ended{f': {lines[-1]}' if lines else ''}. Run with -v to see all that it writes"
    if open_files < _OPEN_FILES:
        why = f"{why.rstrip('.')}. It may open no more than {open_files} files: raise the limit with ulimit -n 4096"
    return why


def _check_local_dirs(conf: Mapping[str, str]) -> None:
    """Check Spark's local folders: with none that it can use, Spark itself fails with 400 lines of output.

    Raises:
        UsageError: Spark can write into none of the folders that are set.
    """
    by_environment = os.environ.get("SPARK_LOCAL_DIRS", "")
    setting = by_environment or conf.get(_LOCAL_DIR, "")
    folders = [each.strip() for each in setting.split(",") if each.strip()]
    problems = []
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return
        except OSError as e:
            problems.append(f"{folder}: {e.strerror}")
    if problems:
        name = "SPARK_LOCAL_DIRS" if by_environment else _LOCAL_DIR
        raise UsageError(
            f"{name}: Spark can write into none of these folders: {'; '.join(problems)}. Give one that it can."
        )
