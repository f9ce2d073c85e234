"""Tasks on a Spark session, as ``mapInArrow`` stages.

A stage's input is one row a task; what tasks read and write are files, so document content never crosses the JVM. On
this machine it is a stage of an RDD.
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

from ferryman.engine.runner.base import Answer, Item, QueryFailed, Runner, no_memory_is_death, set_outcome
from ferryman.engine.runner.reasons import packed, reason, unpacked
from ferryman.engine.runner.sessions import is_alive, shown, was_stopped
from ferryman.engine.runner.worker import ImportPath, answering
from ferryman.errors import EngineError, FerrymanError, OutOfMemory, WorkerDied, describe, plain_text
from ferryman.plan.calls import dumps

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
        with self._explained():
            try:
                return max(1, int(self.spark.sparkContext.defaultParallelism))
            except PySparkException:  # Connect: it parts a range without a number of parts by its cores
                return max(1, len(self.spark.range(_PARTED).select(spark_partition_id()).distinct().collect()))

    @property
    def on_one_machine(self) -> bool:
        """Whether the driver is the executor, too (``local[*]``)."""
        with contextlib.suppress(AttributeError, PySparkException):
            master = str(self.spark.sparkContext.master)  # it knows that by itself, whatever has become of its JVM
            return master.startswith("local") and not master.startswith("local-cluster")
        return False  # Connect: the server is another process at least, perhaps of another user

    @property
    def concurrent(self) -> bool:
        return True

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run the task for each item as a Spark job, see ``Runner.run``."""
        return self.run_before(task, items, lambda: None)

    def run_before(
        self, task: Callable[[Item], Answer], items: Sequence[Item], then: Callable[[], None]
    ) -> list[Answer]:
        """Run the task and call ``then``, see ``Runner.run_before``. Spark starts the tasks of the first of two jobs
        first."""
        if not items:
            then()
            return []
        pickled = [dumps(item) for item in items]  # classes of the plan file travel by value
        path = ImportPath.of_driver()

        def answers(numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
            for number in numbers:
                with packed(), answering(), no_memory_is_death():
                    path.follow()
                    answer = task(pickle.loads(pickled[number]))
                _settle_in()
                yield number, pickle.dumps(answer)

        if self.on_one_machine:  # Connect has no RDDs, and some clusters allow none
            # The first job of a session takes 0.7 s less: the time to load what plans a query, and to plan it.
            with self._explained():
                numbers = self.spark.sparkContext.parallelize(range(len(items)), len(items))
                made: Any = numbers.mapPartitions(answers)
                _ = made._jrdd  # made now, so that nothing but the job itself comes after ``then``
            then()
            return self._collect(made)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from starmap(_answer, answers(batch.column(0).to_pylist()))

        with self._explained(), shown(self.spark):
            frame = self.spark.range(0, len(items), 1, len(items)).mapInArrow(stage, _ANSWER)
        then()
        return self._collect(frame)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        path = ImportPath.of_driver()

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()
            with packed(), answering(), no_memory_is_death():
                path.follow()
                answer = task(number, batches)
            _settle_in()
            yield _answer(number, pickle.dumps(answer))

        with self._explained(frame=True):
            with shown(self.spark):
                frame = read(self.spark).mapInArrow(stage, _ANSWER)
            return _answers(frame.collect())

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run work in a thread, see ``Runner.run_ahead``. Its jobs share the cores with those of other threads."""
        done: Future[Answer] = Future()

        def run() -> None:
            set_outcome(done, in_pool)

        def in_pool() -> Answer:
            with self._explained(), contextlib.suppress(PySparkException):  # Connect has no pools
                self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _AHEAD)
            return work()

        threading.Thread(target=run, name="ferryman-ahead", daemon=True).start()
        return done

    def _collect(self, frame: Any) -> list[Any]:
        with self._explained():
            return _answers(frame.collect())

    @contextlib.contextmanager
    def _explained(self, *, frame: bool = False) -> Iterator[None]:
        """Convert errors of Spark, or of the bridge to its JVM, to errors of ours.

        Args:
            frame: what is called is a user's frame: it fails by a fault of its own, if Spark is well.

        Raises:
            WorkerDied, EngineError, QueryFailed: see ``Runner.run`` and ``Runner.run_frame``.
            FerrymanError: what a task or the user's function raised of ours.
        """
        try:
            yield
        except FerrymanError:
            raise
        except Exception as e:
            if (inside := unpacked(e)) is not None:
                raise inside from e
            unanswered = not frame and isinstance(e, (Py4JNetworkError, ConnectionError))
            if unanswered or not is_alive(self.spark):
                raise EngineError(_STOPPED if was_stopped(self.spark) else _JVM_ENDED) from e
            if any(sign in plain_text(e) for sign in _SIGNS_OF_DEATH):
                raise WorkerDied(f"Spark: {_A_DEATH}") from e
            if (said := _NO_MEMORY.search(str(e))) is not None:
                raise OutOfMemory(f"Spark: {_TOO_LITTLE} ({said[1].strip()})") from e
            if frame:
                of_spark = isinstance(e, (PySparkException, Py4JError))
                raise QueryFailed(reason(e) if of_spark else describe(e)) from e
            raise EngineError(f"Spark: {reason(e)}") from e


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


def _answers(rows: Iterable[Any]) -> list[Any]:
    """In the items' order."""
    return [answer for _, answer in sorted(((row[0], pickle.loads(bytes(row[1]))) for row in rows), key=lambda r: r[0])]


_SIGNS_OF_DEATH = ("Python worker exited unexpectedly", "Python worker failed to connect", "ExecutorLostFailure")
_A_DEATH = "a Python worker died: it was killed from outside, ran out of memory, or crashed in a step or a destination"
_AGAIN = "Nothing is lost: run again."
_STOPPED = f"The Spark session was stopped in the middle of the run, by this program or from outside. {_AGAIN}"
_JVM_ENDED = (
    f"Spark's JVM ended in the middle of the run: it was killed from outside, ran out of memory, or crashed. {_AGAIN}"
)
_NO_MEMORY = re.compile(
    r"^\s*([\w.]*MemoryError\b.*|.*failed to map segment.*|.*Failed to launch worker thread.*)$", re.MULTILINE
)
"""The last words of a worker whose PySpark itself had no memory."""
_TOO_LITTLE = (
    "a Python worker has too little memory for anything: raise its limit (spark.executor.pyspark.memory, ulimit -v, "
    "or that of its container)"
)
