"""The launch of Spark's JVM, which can be aborted at any moment; what the JVM writes, which goes to the log; and the
Java and the Python that Spark runs on.

PySpark starts the JVM and waits for it: there is no way to stop waiting, and what the JVM writes reaches the terminal.
So ``Launch`` starts the process for PySpark.

Until Spark has started, all output is the JVM's. After that it is mixed with what steps print, which users want to see:
the JVM's is recognized by marks that our log4j2 settings put around each record, and by how Java prints errors.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pwd
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from ferryman.errors import EngineError, UsageError

JVM_LOG: Final = logging.getLogger("ferryman.spark")
"""Gets each line that the JVM writes, at level DEBUG."""

INTERRUPTED: Final = "The start of Spark was interrupted."

_MAX_JVM_LINES: Final = 50
"""Lines of the JVM's output that are kept while it starts."""

_LAST_WORDS_S: Final = 1.0
"""Seconds to wait for the last output of the JVM if Spark did not start."""

_KILLED_S: Final = 10.0
"""Seconds to wait for the end of a JVM that was killed."""

_RECORD: Final = b"\x1e"
_RECORD_END: Final = b"\x1f"
"""Marks around a record of the JVM's log, see log4j2.properties."""

_JVM_LINE: Final = re.compile(
    rb"Exception in thread |Exception: java\.|\tat [\w.$/]+|\t\.\.\. \d+ (?:more|common)|Caused by: [a-z][\w.]+[A-Z]"
    rb"|java\.lang\.\w+(?:Error|Exception)|WARNING: (?:Using incubator|A |Please|Use|All|sun\.)|OpenJDK |Java HotSpot"
)
"""Beginning of a line that the JVM itself prints, or Java code that prints an error."""

_CRASH: Final = b"# A fatal error has been detected by the Java Runtime Environment"


class Launch:
    """A start of Spark that a signal, or another thread, may abort.

    Attributes:
        aborted: whether it was.
        lines: the last lines that the JVM has written.
    """

    def __init__(self) -> None:
        self.aborted = False
        self.lines: deque[str] = deque(maxlen=_MAX_JVM_LINES)
        self._process: subprocess.Popen[Any] | None = None
        self._state: Literal["new", "starting", "ended"] = "new"

    def abort(self) -> None:
        """End the JVM that is starting. Afterwards, and before it was launched, the start fails at once; one that
        Spark's session has come of is left alone."""
        self.aborted = True
        if self._state == "starting" and self._process is not None:
            self._process.kill()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Start the JVM that PySpark wants within the block, and read what it writes until it ends.

        Raises:
            EngineError: the launch was aborted before.
        """
        from pyspark import SparkContext, java_gateway  # takes a second, and a launch may be made without need

        self._state = "starting"
        if self.aborted:
            raise EngineError(INTERRUPTED)
        self._process = getattr(SparkContext._gateway, "proc", None)  # an earlier session's JVM is used again
        output = _JvmOutput(self.lines)
        gateway: Any = java_gateway
        popen, gateway.Popen = gateway.Popen, functools.partial(self._popen, output)
        try:
            yield
        except BaseException as e:
            if not isinstance(e, Exception):
                self.abort()
            output.drain()
            self._forget_ended_jvm()
            raise
        finally:
            gateway.Popen = popen
            self._state = "ended"
            output.started = True

    def _popen(self, output: _JvmOutput, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        with output.pipe() as writing:
            self._process = subprocess.Popen(command, **{**options, "stdout": writing, "stderr": writing})
        if self.aborted:
            self._process.kill()
        return self._process

    def _forget_ended_jvm(self) -> None:
        """Let PySpark start another JVM: one that has ended would fail every later session of this process."""
        from pyspark import SparkContext

        if self._process is None:
            return
        if self.aborted:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILLED_S)
        if SparkContext._gateway is not None and self._process.poll() is not None:
            SparkContext._active_spark_context = None
            SparkContext._gateway = SparkContext._jvm = None


class _JvmOutput:
    """Output of a JVM and of the Python workers below it.

    Args:
        lines: gets the last lines of the JVM.

    Attributes:
        started: whether Spark has started, so that what is not the JVM's is passed on to stderr.
    """

    def __init__(self, lines: deque[str]) -> None:
        self.started = False
        self._lines = lines
        self._in_record = self._crashed = False
        self._reader: threading.Thread | None = None

    @contextlib.contextmanager
    def pipe(self) -> Iterator[int]:
        """Yield a descriptor for a process to write to, and read what is written until all writers have closed it."""
        reading, writing = os.pipe()
        try:
            stderr = os.dup(2)
        except OSError:  # there is no stderr
            stderr = os.open(os.devnull, os.O_WRONLY)
        self._reader = threading.Thread(target=self._read, args=(reading, stderr), name="ferryman-stderr", daemon=True)
        self._reader.start()
        try:
            yield writing
        finally:
            os.close(writing)

    def drain(self) -> None:
        """Wait for what the JVM still writes, for a moment."""
        if self._reader is not None:
            self._reader.join(_LAST_WORDS_S)

    def _read(self, reading: int, stderr: int) -> None:
        with open(reading, "rb", buffering=0) as pipe, open(stderr, "wb", buffering=0) as out:
            held = b""
            while data := pipe.read(65_536):
                *lines, held = (held + data).split(b"\n")
                foreign = [line + b"\n" for line in lines if not self._take(line)]
                if held and self.started and not self._may_be_of_jvm(held):  # a prompt without its end is not held back
                    foreign.append(held)
                    held = b""
                with contextlib.suppress(OSError):  # nobody reads it; the JVM must not be stopped by that
                    out.write(b"".join(foreign))
            if held and not self._take(held):
                with contextlib.suppress(OSError):
                    out.write(held)

    def _may_be_of_jvm(self, part: bytes) -> bool:
        return self._in_record or self._crashed or part[:1] in (_RECORD, b"\t", b"#") or part[:1].isupper()

    def _take(self, line: bytes) -> bool:
        """Log a line of the JVM; return False if it is not the JVM's."""
        self._crashed = self._crashed or line.startswith(_CRASH)
        self._in_record = self._in_record or line.startswith(_RECORD)
        if self.started and not (self._in_record or self._crashed or _JVM_LINE.match(line)):
            return False
        self._in_record = self._in_record and _RECORD_END not in line
        text = line.translate(None, _RECORD + _RECORD_END).decode(errors="replace").rstrip()
        if text:
            self._lines.append(text)
            JVM_LOG.debug("Spark: %s", text)
        return True


def name_user(environment: dict[str, str] | Any = os.environ) -> Mapping[str, str]:
    """Give this user a name where the system has none for it, as in a container that runs with any user id; returns
    settings for Spark, which otherwise fails for want of a name and a home folder."""
    try:
        pwd.getpwuid(os.geteuid())
        return {}
    except KeyError:
        pass
    for variable in ("HADOOP_USER_NAME", "SPARK_USER"):
        environment.setdefault(variable, environment.get("USER") or f"user{os.geteuid()}")
    return {"spark.jars.ivy": _scratch_folder().name}


@functools.cache
def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes when this process ends."""
    return tempfile.TemporaryDirectory(prefix="ferryman-ivy-")


# --- the Python of the workers ------------------------------------------------------------------------

_PYTHON: Final = "PYSPARK_PYTHON"
_PYTHON_SETTING: Final = "spark.pyspark.python"
_ARCHIVES: Final = "spark.archives"


@contextlib.contextmanager
def workers_python(master: str, conf: Mapping[str, str]) -> Iterator[None]:
    """Name the Python of the workers in the environment within the block, in which PySpark looks for it."""
    before = os.environ.get(_PYTHON)
    os.environ[_PYTHON] = python_of_workers(master, conf)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PYTHON]
        else:
            os.environ[_PYTHON] = before


def python_of_workers(master: str, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str:
    """Return the Python that workers run: on this machine the one that runs here, since any other may lack Ferryman.

    On a cluster the one that the user names, by ``spark.pyspark.python`` or ``PYSPARK_PYTHON``, or sends along in an
    archive; otherwise the path of the one that runs here.
    """
    if master.startswith("local") and not master.startswith("local-cluster"):
        return sys.executable
    return conf.get(_PYTHON_SETTING) or environment.get(_PYTHON) or _python_in_archives(conf) or sys.executable


def _python_in_archives(conf: Mapping[str, str]) -> str | None:
    """Return the Python in the archives that Spark unpacks beside a worker: ``env.tar.gz#env`` -> ``env/bin/python``.

    Only an archive on this machine can be looked into.
    """
    for archive in filter(None, map(str.strip, conf.get(_ARCHIVES, "").split(","))):
        path, _, folder = archive.partition("#")
        if _has_python(path.removeprefix("file://")):
            return f"./{folder or os.path.basename(path)}/bin/python"
    return None


def _has_python(archive: str) -> bool:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return "bin/python" in opened.namelist()
        with tarfile.open(archive) as opened:
            return any(each.name.removeprefix("./") == "bin/python" for each in opened)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error):
        return False


# --- Java: whether there is one that Spark can run on; without one, Spark itself answers with a stack trace ---

OLDEST: Final = 17
"""Oldest Java that Spark 4 runs on."""

_VERSION: Final = re.compile(r'(?:version |\bJAVA_VERSION=)"(?:1\.)?(\d+)')
"""A version in the output of ``java -version``: ``openjdk version "17.0.13"``, once ``"1.8.0_402"``; or in the file
``release`` of a Java: ``JAVA_VERSION="17.0.13"``."""

_ANSWER_S: Final = 60.0

_INSTALL: Final = (
    f"Spark needs Java {OLDEST} or newer. Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: "
    "dnf install java-17-openjdk-headless; macOS: brew install openjdk@17), or set JAVA_HOME to the folder of one"
)


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Check that there is a Java that Spark can run on.

    Raises:
        UsageError: there is no Java, JAVA_HOME is not the folder of one, or it is too old.
    """
    home = environment.get("JAVA_HOME", "")
    java = java_command(environment)
    if java is None and home:
        raise UsageError(f"JAVA_HOME is {home}, and there is no bin/java in it. {_INSTALL}.")
    if java is None:
        raise UsageError(f"There is no Java: no java on the PATH, and JAVA_HOME is not set. {_INSTALL}.")
    version = _version(java, environment)
    if version is not None and version < OLDEST:
        where = f"JAVA_HOME is {home}, which" if home else f"{java}"
        raise UsageError(f"{where} is Java {version}. {_INSTALL}.")


def java_command(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the Java that Spark starts: that of JAVA_HOME, otherwise the first on the PATH; None: there is none."""
    if home := environment.get("JAVA_HOME", ""):
        java = str(Path(home, "bin", "java"))
        return java if os.access(java, os.X_OK) else None
    return shutil.which("java", path=environment.get("PATH"))


def _version(java: str, environment: Mapping[str, str]) -> int | None:
    """Return 17 of ``17.0.13``; None if the version is unknown, and Spark may try.

    Nearly every Java has it in a file. Starting Java only to ask costs each run a tenth of a second or more.
    """
    with contextlib.suppress(OSError):
        release = Path(java).resolve().parents[1] / "release"
        if match := _VERSION.search(release.read_text("utf-8", errors="replace")):
            return int(match[1])
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", env=dict(environment),
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return None if match is None else int(match[1])
