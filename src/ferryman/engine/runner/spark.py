"""Tasks on a Spark session, as ``mapInArrow`` stages.

A stage's input is one row per task; tasks read and write files, so document content never crosses the JVM. On this
machine an RDD is used instead of a DataFrame.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import starmap
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.functions import spark_partition_id

from ferryman.engine.runner.base import Answer, Item, QueryFailed, Runner, set_outcome, treat_memory_errors_as_deaths
from ferryman.engine.runner.sessions import expose_session, is_alive, was_stopped
from ferryman.engine.runner.spark_errors import describe_spark_error, pack_errors, unpack_error
from ferryman.engine.runner.worker import ImportPath, check_descriptors
from ferryman.errors import EngineError, FerrymanError, OutOfMemory, WorkerDied, describe, plain_text
from ferryman.plan.calls import dumps

_MANY_ROWS = 100_000
"""Rows of a range that has more of them than any Spark has cores."""

_ANSWER_SCHEMA = "number long, answer binary"

_AHEAD_POOL = "ferryman-ahead"
"""Spark's pool for jobs that run ahead. Within a pool the first job gets all cores; pools get equal shares."""


class SparkRunner(Runner):
    """Runs tasks on a Spark session: classic, or through Spark Connect."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    @functools.cached_property
    def slots(self) -> int:
        """Return the number of cores that Spark has for this session, as far as it reports them."""
        with self._convert_errors():
            try:
                return max(1, int(self.spark.sparkContext.defaultParallelism))
            except PySparkException:  # Connect: it splits a range by its cores, unless a number is given
                return max(1, len(self.spark.range(_MANY_ROWS).select(spark_partition_id()).distinct().collect()))

    @property
    def on_one_machine(self) -> bool:
        """Return whether the driver is also the executor (``local[*]``)."""
        with contextlib.suppress(AttributeError, PySparkException):
            master = str(self.spark.sparkContext.master)  # known in Python, even if the JVM has ended
            return master.startswith("local") and not master.startswith("local-cluster")
        return False  # Connect: the server is another process at least, perhaps of another user

    @property
    def concurrent(self) -> bool:
        return True

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run the task for each item as a Spark job, see ``Runner.run``."""
        return self.run_with_callback(task, items, lambda: None)

    def run_with_callback(
        self, task: Callable[[Item], Answer], items: Sequence[Item], on_submitted: Callable[[], None]
    ) -> list[Answer]:
        """Run the task and call ``on_submitted``, see ``Runner.run_with_callback``. Spark starts the tasks of the
        first of two jobs first."""
        if not items:
            on_submitted()
            return []
        pickled = [dumps(item) for item in items]  # classes of the plan file travel by value
        path = ImportPath.of_driver()

        def answers(numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
            for number in numbers:
                with pack_errors(), check_descriptors(), treat_memory_errors_as_deaths():
                    path.apply()
                    answer = task(pickle.loads(pickled[number]))
                _prepare_worker()
                yield number, pickle.dumps(answer)

        if self.on_one_machine:  # Connect has no RDDs, and some clusters allow none
            # The first job of a session takes 0.7 s less: the time to load what plans a query, and to plan it.
            with self._convert_errors():
                numbers = self.spark.sparkContext.parallelize(range(len(items)), len(items))
                rdd: Any = numbers.mapPartitions(answers)
                _ = rdd._jrdd  # built now, so that only the job itself comes after ``on_submitted``
            on_submitted()
            return self._collect(rdd)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from starmap(_answer_batch, answers(batch.column(0).to_pylist()))

        with self._convert_errors(), expose_session(self.spark):
            frame = self.spark.range(0, len(items), 1, len(items)).mapInArrow(stage, _ANSWER_SCHEMA)
        on_submitted()
        return self._collect(frame)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        path = ImportPath.of_driver()

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()
            with pack_errors(), check_descriptors(), treat_memory_errors_as_deaths():
                path.apply()
                answer = task(number, batches)
            _prepare_worker()
            yield _answer_batch(number, pickle.dumps(answer))

        with self._convert_errors(frame=True):
            with expose_session(self.spark):
                frame = read(self.spark).mapInArrow(stage, _ANSWER_SCHEMA)
            return _read_answers(frame.collect())

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run work in a thread, see ``Runner.run_ahead``. Its jobs share the cores with those of other threads."""
        done: Future[Answer] = Future()

        def run() -> None:
            set_outcome(done, in_pool)

        def in_pool() -> Answer:
            with self._convert_errors(), contextlib.suppress(PySparkException):  # Connect has no pools
                self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _AHEAD_POOL)
            return work()

        threading.Thread(target=run, name="ferryman-ahead", daemon=True).start()
        return done

    def _collect(self, frame: Any) -> list[Any]:
        with self._convert_errors():
            return _read_answers(frame.collect())

    @contextlib.contextmanager
    def _convert_errors(self, *, frame: bool = False) -> Iterator[None]:
        """Convert errors of Spark, or of the bridge to its JVM, to errors of ours.

        Args:
            frame: the block runs a user's DataFrame: if Spark itself works, the error is that of the DataFrame.

        Raises:
            WorkerDied, EngineError, QueryFailed: see ``Runner.run`` and ``Runner.run_frame``.
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
                raise EngineError(_STOPPED if was_stopped(self.spark) else _JVM_ENDED) from e
            if any(sign in plain_text(e) for sign in _SIGNS_OF_DEATH):
                raise WorkerDied(f"Spark: {_DEATH_TEXT}") from e
            if (match := _NO_MEMORY.search(str(e))) is not None:
                raise OutOfMemory(f"Spark: {_TOO_LITTLE_MEMORY} ({match[1].strip()})") from e
            if frame:
                of_spark = isinstance(e, (PySparkException, Py4JError))
                raise QueryFailed(describe_spark_error(e) if of_spark else describe(e)) from e
            raise EngineError(f"Spark: {describe_spark_error(e)}") from e


@functools.cache
def _prepare_worker() -> None:
    """Tune a worker once, when its modules are loaded.

    PySpark collects garbage after each task, which takes 60 ms for all modules, so they are frozen. Arrow's own
    allocator returns memory and gets it cleared again for each file, which takes a sixth of the time of delivering.
    """
    gc.collect()
    gc.freeze()
    pa.set_memory_pool(pa.system_memory_pool())


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
_STOPPED = f"The Spark session was stopped in the middle of the run, by this program or from outside. {_RUN_AGAIN}"
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
