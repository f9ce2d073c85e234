"""Spark sessions: the program's own, which is used and left as it is, and ours, which several runs may share.

A process has one Spark, whatever threads it has. A session that the program made, in whatever thread, is the program's:
it is used, never stopped, and its settings stay. One of ours is shared by the runs that come meanwhile, and ends with
the last of them. PySpark would give it to the next who asks for a session (``getOrCreate``), and it would end in that
one's hands: so it is hidden, but for the moments in which PySpark looks for it to make a frame for us. A program that
asks meanwhile gets a session of its own, on the same Spark, which then stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ferryman.engine.runner.class_sharing import java_options
from ferryman.engine.runner.java import check_java
from ferryman.engine.runner.reasons import reason
from ferryman.errors import UsageError

_INTERRUPTED: Final = 130
"""Exit code of a process that a signal has ended."""

_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOCAL_DIR: Final = "spark.local.dir"
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Set by PySpark for the rest of the process: every session is one of Connect."""

DEFAULT_MASTER: Final = "local[*]"

_THERE: Final = "the Spark session is used that this program has already"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a job that runs ahead must not keep the others from all cores
}


# --- whose they are -----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Own:
    """A session of ours."""

    session: Any
    runs: int = 0
    """How many use it."""
    shown: int = 0
    """Frames that are being made of it now."""


_turn = threading.RLock()
_owns: list[_Own] = []
"""The one that runs, if any: there is one Spark in a process."""


def of_program() -> Any | None:
    """The session that this program has, of whatever thread, as in a notebook; None: it has none of its own."""
    with _turn:
        found = _found()
        return None if any(own.session is found for own in _owns) else found


def _found() -> Any | None:
    if is_remote():
        kind: Any = _connect()
        return kind.getActiveSession() or kind._get_default_session()
    context = SparkContext._active_spark_context
    if context is None or not _runs(context):
        return None
    known = SparkSession._instantiatedSession
    if any(is_alive(own.session) for own in _owns):
        return known
    with contextlib.suppress(Exception):  # whatever PySpark raises of one that ends this moment
        return SparkSession.getActiveSession() or known or SparkSession(context)
    return None


def _connect() -> Any:
    from pyspark.sql.connect.session import SparkSession as Remote

    return Remote


def is_alive(session: Any) -> bool:
    """It was not stopped, and its JVM is there; False also of whatever is not a session."""
    stopped = getattr(session, "is_stopped", None)  # Connect
    if isinstance(stopped, bool):
        return not stopped
    return _runs(getattr(session, "_sc", None))


def was_stopped(session: Any) -> bool:
    """It was stopped in an orderly way; False: it runs, or its JVM has gone."""
    stopped = getattr(session, "is_stopped", None)
    if isinstance(stopped, bool):
        return stopped
    try:
        java = session._sc._jsc
        return java is None or bool(java.sc().isStopped())
    except Exception:  # the bridge to the JVM has many ways to say that nobody answers
        return False


def _runs(context: Any) -> bool:
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # it was stopped, and has no JVM any more; or nobody answers
        return False


def checked(session: Any) -> Any:
    """A session that a user gives.

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
    master: str, conf: Mapping[str, str], name: str, *, queries: bool, tell: Callable[[str], object]
) -> tuple[Any, Callable[[], None]]:
    """A session for a run, and what gives it back: of another run of this program, or a new one.

    If the program has made one meanwhile, it is that.

    Args:
        tell: told which of these settings have no effect, because the session is there already.

    Raises:
        UsageError: see ``start``.
    """
    with _turn:
        if (theirs := of_program()) is not None:
            for unheard in unlike(theirs, master, conf):
                tell(unheard)
            return theirs, lambda: None
        own = next((each for each in _owns if is_alive(each.session)), None)
        if own is None:
            with _builders():
                own = _Own(start(master, conf, name, queries=queries))
                _hide(own.session)
            _owns[:] = [own]
        else:
            for unheard in unlike(own.session, master, conf):
                tell(unheard)
        own.runs += 1
        return own.session, partial(_give_back, own)


def _give_back(own: _Own) -> None:
    """The last one stops it, unless the program has a session on the same Spark by now."""
    with _turn:
        own.runs -= 1
        if own.runs or own not in _owns:
            return
        theirs = of_program()
        _owns.clear()
        if theirs is None:
            stop(own.session)


@contextlib.contextmanager
def shown(session: Any) -> Iterator[None]:
    """PySpark asks for the program's session where it makes a frame: meanwhile one of ours is that, if there is none.

    Of what the program has nothing changes.
    """
    with _turn:
        own = next((each for each in _owns if each.session is session), None)
        if own is not None:
            own.shown += 1
            _show(session)
    try:
        yield
    finally:
        with _turn:
            if own is not None:
                own.shown -= 1
                _hide(session, keep=bool(own.shown))


@contextlib.contextmanager
def _builders() -> Iterator[None]:
    """Nobody else makes a session meanwhile."""
    lock: Any = getattr(type(SparkSession.builder), "_lock", None)
    with lock if lock is not None else contextlib.nullcontext():
        yield


def _show(session: Any) -> None:
    if not isinstance(session, SparkSession):
        active = _connect()._active_session
        if getattr(active, "session", None) is None:
            active.session = session
    elif SparkSession._instantiatedSession is None:
        SparkSession._instantiatedSession = SparkSession._activeSession = session
        java: Any = SparkSession._get_j_spark_session_class(session._jvm)
        java.setDefaultSession(session._jsparkSession)
        java.setActiveSession(session._jsparkSession)


def _hide(session: Any, *, keep: bool = False) -> None:
    """
    Args:
        keep: other threads are making frames of it.
    """
    if not isinstance(session, SparkSession):
        kind = _connect()
        if kind._default_session is session:
            kind._default_session = None
        if getattr(kind._active_session, "session", None) is session:
            kind._active_session.session = None
    elif SparkSession._instantiatedSession is session and not keep:
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        with contextlib.suppress(Exception):  # its JVM may have ended; whoever needs that is told
            java: Any = SparkSession._get_j_spark_session_class(session._jvm)
            java.clearDefaultSession()
            java.clearActiveSession()


def unlike(session: Any, master: str, conf: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each setting that the running session has otherwise: it is used as it is."""
    with contextlib.suppress(AttributeError, PySparkException):
        actual = str(session.sparkContext.master)
        if master not in (DEFAULT_MASTER, actual):
            yield f"master={master} has no effect: {_THERE}, on {actual}"

    for key, value in conf.items():
        with contextlib.suppress(PySparkException):
            if session.conf.get(key, None) != value:
                yield f"{key}={value} has no effect: {_THERE}"


# --- starting and stopping them -----------------------------------------------------------------------


def start(master: str, conf: Mapping[str, str], name: str, *, queries: bool = True) -> SparkSession:
    """A new session. Workers run this very Python.

    Args:
        queries: the JVM runs queries, those of ``DataFrame`` sources. Without them it does little, and starts faster.

    Raises:
        UsageError: Spark does not start with this master and configuration, or there is no Java for it.
    """
    remote = master.startswith("sc://")  # a server of Connect has its own settings for all that is set here
    if remote and find_spec("grpc") is None:
        raise UsageError(f"--master {master}: Spark Connect needs more packages: pip install 'ferryman[connect]'")
    if not remote and "PYSPARK_GATEWAY_PORT" not in os.environ:  # there is a JVM already
        check_java()
    if not remote:
        _check_local_dirs(conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {} if remote else dict(_SETTINGS)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no look-up of this machine's name, no warning about it
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings["spark.python.daemon.module"] = "ferryman.engine.runner.daemon"
    settings |= conf
    if not remote:
        settings |= {_OPTIONS: _java_options(conf.get(_OPTIONS, ""), master.startswith("local"), queries)}
    builder = SparkSession.builder.appName(name)
    builder = builder.remote(master) if remote else builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    said: deque[str] = deque(maxlen=_SAID)
    session: SparkSession | None = None
    try:
        with _unbroken(), _without_chatter(said):
            session = builder.getOrCreate()
    except Exception as e:
        raise UsageError(f"Spark did not start with --master {master}: {_why_not(e, said)}") from e
    except BaseException:  # a signal that has waited until it was there
        if session is not None:
            stop(session)
        raise
    with contextlib.suppress(AttributeError, PySparkException):  # Connect has no context
        session.sparkContext.setLogLevel("ERROR")
    return session


def stop(session: SparkSession) -> None:
    """End a session of our own. What receives accumulators, which we have none of, needs a second for that: it may.

    One that was stopped, or whose JVM has ended, raises nothing, and is forgotten: Spark can be started again.
    """
    if not isinstance(session, SparkSession):
        session.stop()
        if _connect()._get_default_session() is None:
            os.environ.pop(_CONNECT, None)
        return
    if SparkContext._active_spark_context is not session._sc:
        return  # the program has stopped it: what runs now is another
    lost = not is_alive(session)
    server: Any = session._sc._accumulatorServer
    if server is not None:
        end = type(server).shutdown
        server.shutdown = lambda: threading.Thread(target=end, args=(server,), daemon=True).start()
        server.handle_error = lambda *_: None  # that the JVM ends meanwhile is none
    with contextlib.ExitStack() as quiet:
        if lost:
            quiet.enter_context(contextlib.suppress(Exception))
            quiet.enter_context(warnings.catch_warnings(action="ignore"))
        session.stop()
    _forget_sparks_handler()
    if lost:
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    """Signals wait until Spark has started: a start that is broken off leaves a JVM that nobody ends.

    A second signal ends this process at once, and with it the JVM, which then finds all that it looks for at its start.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are heard by the main thread alone
        return
    heard: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        if heard:
            os._exit(_INTERRUPTED)
        heard.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in numbers}
    _before_spark[:] = [before[signal.SIGINT]]
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == hear:  # Spark has one of its own for Ctrl-C
                signal.signal(number, handler)
        if heard and callable(handler := before[signal.Signals(heard[0])]):
            handler(heard[0], None)
        elif heard and handler is signal.SIG_DFL:
            signal.raise_signal(heard[0])


_before_spark: list[Any] = []
"""Handler of Ctrl-C before Spark was started, which installs its own and leaves it there."""


def _forget_sparks_handler() -> None:
    """Ctrl-C does again what it did before Spark was started, unless somebody has changed that meanwhile."""
    if threading.current_thread() is not threading.main_thread() or not _before_spark:
        return  # only the main thread may set it
    before = _before_spark.pop()
    current = signal.getsignal(signal.SIGINT)
    if getattr(current, "__qualname__", "").startswith("SparkContext.") and before is not None:
        signal.signal(signal.SIGINT, before)


def _java_options(theirs: str, local: bool, queries: bool) -> str:
    log = shlex.quote(f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}")
    theirs = f"{log} {theirs}".strip()  # theirs, where both name one
    return java_options(theirs, queries=queries) if local else theirs


_CHATTER = b"WARNING: Using incubator modules: "
"""Warning of the JVM about a module that Spark asks for; no option turns it off."""


_LAST_WORDS_S: Final = 1.0
"""How long the JVM's last words are waited for where Spark did not start; a JVM that has ended has no more."""

_SAID: Final = 50
"""Lines of the JVM that are kept while it starts."""

_OF_LOG: Final = re.compile(r"(?:\S+ (?:ERROR|FATAL) \w+|Exception in thread \"main\" [\w.$]+): (?P<what>.+)")
"""An error of Spark that ends its JVM: ``16:57:57 ERROR DiskBlockManager: Failed to create any local dir.``"""

_OF_JAVA: Final = re.compile(r"(?:Error|Unrecognized|Too small|Invalid|Could not|Failed|There is insufficient).*")


def _why_not(error: Exception, said: Iterable[str]) -> str:
    """Why Spark did not start. If its JVM has ended, it is what that said last."""
    if not isinstance(error, OSError | Py4JError) and "JAVA_GATEWAY_EXITED" not in str(error):
        return reason(error)
    if isinstance(error, Py4JJavaError):
        return reason(error)
    lines = [line.strip() for line in said if not line.startswith(("\t", " "))]
    of_log = [found["what"] for line in lines if (found := _OF_LOG.fullmatch(line))]
    of_java = [line for line in lines if _OF_JAVA.fullmatch(line) and not line.startswith("Error: Could not create")]
    if of_log or of_java:
        return f"its JVM ended: {' '.join(of_log[-1:] or of_java[-2:])}"
    if isinstance(error, OSError) or "JAVA_GATEWAY_EXITED" not in str(error):
        return "its JVM has ended. Start this program again"
    return reason(error)


def _check_local_dirs(conf: Mapping[str, str]) -> None:
    """
    Raises:
        UsageError: Spark can use none of the folders that it is told to; it would say so in 400 lines.
    """
    by_environment = os.environ.get("SPARK_LOCAL_DIRS", "")
    told = by_environment or conf.get(_LOCAL_DIR, "")
    folders = [each.strip() for each in told.split(",") if each.strip()]
    whys = []
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return
        except OSError as e:
            whys.append(f"{folder}: {e.strerror}")
    if whys:
        name = "SPARK_LOCAL_DIRS" if by_environment else _LOCAL_DIR
        raise UsageError(
            f"{name}: Spark can write into none of these folders: {'; '.join(whys)}. Give one that it can."
        )


@contextlib.contextmanager
def _without_chatter(said: deque[str]) -> Iterator[None]:
    """Send the errors of processes started in the block through a pipe, and pass on all but the JVM's chatter.

    Args:
        said: gets the last lines.
    """
    try:
        ours = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    reader = threading.Thread(target=_pass_on, args=(reading, ours, said), name="ferryman-stderr", daemon=True)
    reader.start()
    started = False
    try:
        yield
        started = True
    finally:
        os.dup2(ours, 2)
        if not started:
            reader.join(_LAST_WORDS_S)


def _pass_on(reading: int, to: int, said: deque[str]) -> None:
    """Until whoever writes into the pipe has ended."""
    with open(reading, "rb", buffering=0) as pipe, open(to, "wb", buffering=0) as out, contextlib.suppress(OSError):
        held = b""
        while data := pipe.read(65_536):
            *lines, held = (held + data).split(b"\n")
            said.extend(line.decode(errors="replace") for line in lines)
            out.write(b"".join(line + b"\n" for line in lines if not line.startswith(_CHATTER)))
            if held and not _CHATTER.startswith(held[: len(_CHATTER)]):
                out.write(held)  # a prompt without its end is not held back
                held = b""
        out.write(held)
