"""Tasks on a Spark session, as ``mapInArrow`` stages.

A stage's input is one row per task; tasks read and write files, so document content never crosses the JVM. On this
machine an RDD is used instead of a DataFrame.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import starmap
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import TaskContext, inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from ferryman.engine.runner.base import (
    Answer,
    Item,
    QueryFailed,
    Runner,
    RunnerLost,
    set_outcome,
    treat_memory_errors_as_deaths,
)
from ferryman.engine.runner.sessions import expose_session, is_alive, was_stopped
from ferryman.engine.runner.spark_errors import describe_spark_error, describe_yarn_end, pack_errors, unpack_error
from ferryman.engine.runner.worker import ImportPath, check_descriptors, tune_process
from ferryman.errors import EngineError, FerrymanError, OutOfMemory, WorkerDied, describe, plain_text
from ferryman.plan.calls import dumps

_MANY_ROWS = 100_000
"""Rows of a range that has more of them than any Spark has cores."""

_ANSWER_SCHEMA = "number long, answer binary"

_BACKGROUND_POOL = "ferryman-ahead"
"""Spark's pool for jobs in the background. Within a pool the first job gets all cores; pools get equal shares."""


class SparkRunner(Runner):
    """Runs tasks on a Spark session: classic, or through Spark Connect."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self._application = _yarn_application(spark)

    @property
    def slots(self) -> int:
        """Return the number of cores that Spark has for this session now, as far as it reports them: executors come
        and go."""
        with self._convert_errors():
            try:
                return max(1, int(self.spark.sparkContext.defaultParallelism))
            except PySparkException:  # Connect has no context
                return self._slots_of_server

    @functools.cached_property
    def _slots_of_server(self) -> int:
        """Number of cores of a Connect server, which takes a job: it splits a range by them, unless told otherwise."""
        return max(1, len(self.spark.range(_MANY_ROWS).select(spark_partition_id()).distinct().collect()))

    @property
    def on_one_machine(self) -> bool:
        """Return whether the driver is also the executor (``local[*]``)."""
        with contextlib.suppress(AttributeError, PySparkException):
            master = str(self.spark.sparkContext.master)  # known in Python, even if the JVM has ended
            return master.startswith("local") and not master.startswith("local-cluster")
        return False  # Connect: the server is another process at least, perhaps of another user

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Run the task for each item as a Spark job, see ``Runner.submit``. Spark starts the tasks of the first of two
        jobs first, unless one runs in the background."""
        done: Future[list[Answer]] = Future()
        if not items:
            done.set_result([])
            return done
        try:
            with self._convert_errors():
                collect = partial(self._collect, self._make_frame(task, items), background)
                if isinstance(self.spark, SparkSession):  # what the program has set for this thread, such as a pool
                    collect = inheritable_thread_target(self.spark)(collect)
            work = partial(set_outcome, done, partial(self._answers, collect))
            threading.Thread(target=work, name="ferryman-tasks", daemon=True).start()
        except Exception as e:
            done.set_exception(e)
        return done

    def _make_frame(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> Any:
        """Return an RDD, or a DataFrame, of which only the job has to be run."""
        pickled = [dumps(item) for item in items]  # classes of the plan file travel by value
        path = ImportPath.of_driver()

        def answers(numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
            for number in numbers:
                with pack_errors(), check_descriptors(), treat_memory_errors_as_deaths():
                    path.apply()
                    answer = task(pickle.loads(pickled[number]))
                tune_process()
                yield number, pickle.dumps(answer)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from starmap(_answer_batch, answers(batch.column(0).to_pylist()))

        if self.on_one_machine:  # Connect has no RDDs, and some clusters allow none
            # The first job of a session takes 0.7 s less: the time to load what plans a query, and to plan it.
            rdd: Any = self.spark.sparkContext.parallelize(range(len(items)), len(items)).mapPartitions(answers)
            _ = rdd._jrdd  # built now, so that the thread only runs the job
            return rdd
        with expose_session(self.spark):
            return self.spark.range(0, len(items), 1, len(items)).mapInArrow(stage, _ANSWER_SCHEMA)

    def _collect(self, frame: Any, background: bool) -> Any:
        if background:
            with contextlib.suppress(PySparkException):  # Connect has no pools
                self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _BACKGROUND_POOL)
        return frame.collect()

    def _answers(self, collect: Callable[[], Any]) -> list[Any]:
        with self._convert_errors():
            return _read_answers(collect())

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        path = ImportPath.of_driver()

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()
            with pack_errors(), check_descriptors(), treat_memory_errors_as_deaths():
                path.apply()
                answer = task(number, batches)
            tune_process()
            yield _answer_batch(number, pickle.dumps(answer))

        with self._convert_errors(frame=True):
            with expose_session(self.spark):
                frame = read(self.spark).mapInArrow(stage, _ANSWER_SCHEMA)
            return _read_answers(frame.collect())

    def use_session(self, use: Callable[[Any], Answer]) -> Answer:
        with expose_session(self.spark):
            return use(self.spark)

    @contextlib.contextmanager
    def _convert_errors(self, *, frame: bool = False) -> Iterator[None]:
        """Convert errors of Spark, or of the bridge to its JVM, to errors of ours.

        Args:
            frame: the block runs a user's DataFrame: if Spark itself works, the error is that of the DataFrame.

        Raises:
            WorkerDied, RunnerLost, EngineError, QueryFailed: see ``Runner.submit`` and ``Runner.run_frame``.
            FerrymanError: an error of ours that a task or the user's function raised.
        """
        try:
            yield
        except FerrymanError:
            raise
        except Exception as e:
            if (error_of_task := unpack_error(e)) is not None:
                raise error_of_task from e
            unanswered = not frame and isinstance(e, (Py4JNetworkError, ConnectionError))
            if unanswered or not is_alive(self.spark):
                raise RunnerLost(_describe_stop(self._application) if was_stopped(self.spark) else _JVM_ENDED) from e
            if any(sign in plain_text(e) for sign in _SIGNS_OF_DEATH):
                raise WorkerDied(f"Spark: {_DEATH_TEXT}") from e
            if (match := _NO_MEMORY.search(str(e))) is not None:
                raise OutOfMemory(f"Spark: {_TOO_LITTLE_MEMORY} ({match[1].strip()})") from e
            if frame:
                of_spark = isinstance(e, (PySparkException, Py4JError))
                raise QueryFailed(describe_spark_error(e) if of_spark else describe(e)) from e
            raise EngineError(f"Spark: {describe_spark_error(e)}") from e


def _yarn_application(spark: Any) -> str:
    """Return the id of a session's application on YARN; "" elsewhere."""
    with contextlib.suppress(Exception):  # Connect has no context; the first task reports a session that has ended
        if str(spark.sparkContext.master) == "yarn":
            return str(spark.sparkContext.applicationId)
    return ""


def _describe_stop(application: str) -> str:
    why = f" {describe_yarn_end(application)}" if application else ""
    return f"The Spark session was stopped in the middle of the run, by this program or from outside.{why} {_RUN_AGAIN}"


def _answer_batch(number: int, answer: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], names=["number", "answer"]
    )


def _read_answers(rows: Iterable[Any]) -> list[Any]:
    """Return the answers in the items' order."""
    return [answer for _, answer in sorted(((row[0], pickle.loads(bytes(row[1]))) for row in rows), key=lambda r: r[0])]


_SIGNS_OF_DEATH = ("Python worker exited unexpectedly", "Python worker failed to connect", "ExecutorLostFailure")
_DEATH_TEXT = (
    "a Python worker died: it was killed from outside, ran out of memory, or crashed in a step or a destination"
)
_RUN_AGAIN = "Nothing is lost: run again."
_JVM_ENDED = (
    "Spark's JVM ended in the middle of the run: it was killed from outside, ran out of memory, or crashed. "
    f"{_RUN_AGAIN}"
)
_NO_MEMORY = re.compile(
    r"^[ \t]*+([\w.]*MemoryError\b.*|.*failed to map segment.*|.*Failed to launch worker thread.*)$", re.MULTILINE
)
"""Last line of a worker in which PySpark itself ran out of memory."""
_TOO_LITTLE_MEMORY = (
    "a Python worker has too little memory for anything: raise its limit (spark.executor.pyspark.memory, ulimit -v, "
    "or that of its container)"
)
