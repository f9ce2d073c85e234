"""Spark, and nothing else that knows it: sessions, and tasks as ``mapInArrow`` stages.

A stage's input is one row a task; what tasks read and write are files, so document content never crosses the JVM. On
this machine it is a stage of an RDD.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from ferryman.engine.runner.base import Answer, Item, Runner, set_outcome
from ferryman.engine.runner.class_sharing import java_options
from ferryman.engine.runner.java import check_java
from ferryman.errors import EngineError, UsageError, WorkerDied

_INTERRUPTED = 130
"""Exit code of a process that a signal has ended."""

_OPTIONS = "spark.driver.extraJavaOptions"

DEFAULT_MASTER = "local[*]"

_THERE = "the Spark session is used that this program has already"

_PARTED = 100_000
"""Numbers in a range that has more of them than any Spark has cores."""

_ANSWER = "number long, answer binary"

_AHEAD = "ferryman-ahead"
"""Spark's pool of jobs that run ahead. Within a pool the job that came first gets all cores; pools get equal shares."""


class SparkRunner(Runner):
    """Runs tasks on a Spark session: classic, or through Spark Connect."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    @functools.cached_property
    def slots(self) -> int:
        """Cores that Spark has for us, as far as it says."""
        try:
            return max(1, int(self.spark.sparkContext.defaultParallelism))
        except (AttributeError, PySparkException):  # Connect: it parts a range without a number of parts by its cores
            return max(1, len(_rows(self.spark.range(_PARTED).select(spark_partition_id()).distinct())))

    @property
    def on_one_machine(self) -> bool:
        """Is the driver the executor, too (``local[*]``)?"""
        with contextlib.suppress(AttributeError, PySparkException):
            master = str(self.spark.sparkContext.master)
            return master.startswith("local") and not master.startswith("local-cluster")
        return False  # Connect: the server is another process at least, perhaps of another user

    @property
    def concurrent(self) -> bool:
        return True

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """See ``Runner.run``."""
        return self.run_before(task, items, lambda: None)

    def run_before(
        self, task: Callable[[Item], Answer], items: Sequence[Item], then: Callable[[], None]
    ) -> list[Answer]:
        """See ``Runner.run_before``. Of two jobs Spark starts the tasks of the first one first."""
        if not items:
            then()
            return []
        pickled = [cloudpickle.dumps(item) for item in items]  # classes of the plan file travel by value

        def answers(numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
            for number in numbers:
                answer = task(pickle.loads(pickled[number]))
                _settle_in()
                yield number, pickle.dumps(answer)

        if self.on_one_machine:  # Connect has no RDDs, and some clusters allow none
            # The first job of a session takes 0.7 s less: the time to load what plans a query, and to plan it.
            numbers = self.spark.sparkContext.parallelize(range(len(items)), len(items))
            made: Any = numbers.mapPartitions(answers)
            _ = made._jrdd  # made now, so that nothing but the job itself comes after ``then``
            return [answer for _, answer in _collect(made, then)]

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from starmap(_answer, answers(batch.column(0).to_pylist()))

        frame = self.spark.range(0, len(items), 1, len(items))
        return [answer for _, answer in _collect(frame.mapInArrow(stage, _ANSWER), then)]

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """See ``Runner.run_frame``."""

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()
            answer = task(number, batches)
            _settle_in()
            yield _answer(number, pickle.dumps(answer))

        return [answer for _, answer in _collect(read(self.spark).mapInArrow(stage, _ANSWER))]

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """See ``Runner.run_ahead``. Its jobs share the cores with those of other threads."""
        done: Future[Answer] = Future()

        def run() -> None:
            with contextlib.suppress(AttributeError, PySparkException):  # Connect has no pools
                self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _AHEAD)
            set_outcome(done, work)

        threading.Thread(target=run, name="ferryman-ahead", daemon=True).start()
        return done


def running() -> SparkSession | None:
    """The session that this program has already, as in a notebook."""
    return SparkSession.getActiveSession()


def unlike(session: Any, master: str, conf: Mapping[str, str]) -> Iterator[str]:
    """What of these settings a session that is there has otherwise, a sentence each: it is used as it is."""
    with contextlib.suppress(AttributeError, PySparkException):
        actual = str(session.sparkContext.master)
        if master not in (DEFAULT_MASTER, actual):
            yield f"master={master} has no effect: {_THERE}, on {actual}"

    for key, value in conf.items():
        with contextlib.suppress(PySparkException):
            if session.conf.get(key, None) != value:
                yield f"{key}={value} has no effect: {_THERE}"


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # a job that runs ahead must not keep the others from all cores
}


def start(master: str, conf: Mapping[str, str], name: str, *, queries: bool = True) -> SparkSession:
    """A session of our own. Workers run this very Python.

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
    try:
        with _unbroken(), _without_chatter():
            session = builder.getOrCreate()
    except Exception as e:
        raise UsageError(f"Spark did not start with --master {master}: {_reason(e)}") from e
    with contextlib.suppress(AttributeError, PySparkException):  # Connect has no context
        session.sparkContext.setLogLevel("ERROR")
    return session


def stop(session: SparkSession) -> None:
    """End a session of our own. What receives accumulators, which we have none of, needs a second for that: it may."""
    with contextlib.suppress(
        AttributeError, PySparkException
    ):  # Connect has no context, another PySpark perhaps no such server
        server: Any = session.sparkContext._accumulatorServer
        end = type(server).shutdown
        server.shutdown = lambda: threading.Thread(target=end, args=(server,), daemon=True).start()
        server.handle_error = lambda *_: None  # that the JVM ends meanwhile is none
    session.stop()


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until Spark has started: a start that is broken off leaves a JVM that nobody ends.

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

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
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


def _java_options(theirs: str, local: bool, queries: bool) -> str:
    log = shlex.quote(f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}")
    theirs = f"{log} {theirs}".strip()  # theirs, where both name one
    return java_options(theirs, queries=queries) if local else theirs


_CHATTER = b"WARNING: Using incubator modules: "
"""What the JVM says of a module that Spark asks for; it has no switch for it."""


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """What is started meanwhile writes its errors into a pipe, from which all but the JVM's chatter is passed on."""
    try:
        ours = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, ours), name="ferryman-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)


def _pass_on(reading: int, to: int) -> None:
    """Until whoever writes into the pipe has ended."""
    with open(reading, "rb", buffering=0) as pipe, open(to, "wb", buffering=0) as out, contextlib.suppress(OSError):
        held = b""
        while data := pipe.read(65_536):
            *lines, held = (held + data).split(b"\n")
            out.write(b"".join(line + b"\n" for line in lines if not line.startswith(_CHATTER)))
            if held and not _CHATTER.startswith(held[: len(_CHATTER)]):
                out.write(held)  # a prompt without its end is not held back
                held = b""
        out.write(held)


@functools.cache
def _settle_in() -> None:
    """Once a worker, when what it needs is loaded.

    PySpark collects garbage after each task, and looking through all modules takes it 60 ms. Arrow's own allocator
    gives memory back and has it cleared again for each file, which takes a sixth of the time of delivering.
    """
    gc.collect()
    gc.freeze()
    pa.set_memory_pool(pa.system_memory_pool())


def _answer(number: int, answer: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], names=["number", "answer"]
    )


def _collect(frame: Any, then: Callable[[], None] = lambda: None) -> list[tuple[int, Any]]:
    then()
    return sorted(((row[0], pickle.loads(bytes(row[1]))) for row in _rows(frame)), key=lambda r: r[0])


def _rows(frame: Any) -> list[Any]:
    """
    Raises:
        WorkerDied, EngineError: see ``Runner.run``.
    """
    try:
        found: list[Any] = frame.collect()
    except Exception as e:
        if any(sign in str(e) for sign in _SIGNS_OF_DEATH):
            raise WorkerDied(f"Spark: {_A_DEATH}") from e
        raise EngineError(f"Spark: {_reason(e)}") from e
    return found


_SIGNS_OF_DEATH = ("Python worker exited unexpectedly", "Python worker failed to connect", "ExecutorLostFailure")
_A_DEATH = "a Python worker died: it was killed from outside, ran out of memory, or crashed in a step or a destination"


def _reason(error: Exception) -> str:
    """The line of a Spark error that an operator can use: a Python worker's own last line, if there is one, else what
    Java names as the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        head = line.split(":", 1)[0]
        if (
            head.replace(".", "").replace("_", "").isalnum()
            and head.endswith(("Error", "Exception"))
            and not head.startswith(("org.", "java.", "py4j."))
        ):
            return f"{line}. {_NOT_THERE}" if _MISSING in line else line
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    if causes:
        return causes[-1]
    said = [line for line in lines if not line.startswith("An error occurred while calling ")]
    return said[0].removeprefix(": ") if said else type(error).__name__


_MISSING = "No module named 'ferryman'"
_NOT_THERE = (
    "The Python of an executor has no Ferryman: install it there, name a Python that has it in PYSPARK_PYTHON, or send "
    "one along with --conf spark.archives=…"
)
