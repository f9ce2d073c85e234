"""An archive of Spark's classes, from which its JVM starts in half the time.

A JVM that starts Spark reads, checks and links 15 000 classes, which takes it longer than a small run. Java can keep
them in a file that the next JVM maps into memory: class data sharing
(https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). The file is in the user's cache folder. It is
for one Java and one set of jars, and may be missing or removed at any time: Spark only starts slower without it.

A JVM crashes on an archive that is cut off, and on one that is damaged unless it verifies it. So the size of an archive
is in its name, and the JVM is told to verify checksums, which takes it 0.1 s. It ignores an archive of another Java, of
other jars, or of other settings, and is told to be silent about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ferryman.engine.runner.launch import java_command
from ferryman.storage.files import fsync_file
from ferryman.storage.locks import hold_lock

TIMEOUT_S: Final = 180.0
"""Seconds after which making an archive is given up. It takes 20 s of one core; a machine that needs nine times as long
has better things to do."""

RETRY_AFTER_S: Final = 86_400.0
"""Seconds after a failed attempt until the next one in the background."""

MAX_ARCHIVES: Final = 5
MAX_AGE_S: Final = 30 * 86_400.0
"""Archives that are kept, of 170 MB each: at most so many, each used within so many seconds. Each environment has its
own."""

_FORMAT: Final = b"2"
"""Changes with what the training run does, or with what it is told."""

_STALE_FOLDER_S: Final = 3600.0
"""Seconds after which the folder of a killed attempt is removed."""

_CLASS_PATH: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Variables that change the JVM's class path, which is the archive's too."""

_JAVA_OPTIONS: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables with more options for a JVM that Spark starts."""

_SHARING_OPTIONS: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_COMPILER_OPTIONS: Final = ("Tiered", "-Xint", "-Xcomp", "-client", "-server")


def java_options(user_options: str, *, queries: bool, environment: Mapping[str, str] = os.environ) -> str:
    """Return the options of a driver's JVM on this machine: the user's, then ours where the user's leave a choice.

    Args:
        user_options: ``spark.driver.extraJavaOptions``.
        queries: the JVM runs queries, so it needs its second compiler, which costs a second at the start.
    """
    all_options = " ".join([user_options, *(environment.get(name, "") for name in _JAVA_OPTIONS)])
    own_options = []
    if not queries and not any(word in all_options for word in _COMPILER_OPTIONS):
        own_options.append("-XX:TieredStopAtLevel=1")
    if not any(word in all_options for word in _SHARING_OPTIONS):
        archive = ClassArchive.of_machine(environment)
        if archive is not None and (path := archive.find()) is not None:
            quiet = "-Xlog:cds*=off -Xlog:class+path*=off"  # else it reports an archive that does not fit on stdout
            own_options.append(f"{shlex.quote(f'-XX:SharedArchiveFile={path}')} -XX:+VerifySharedSpaces {quiet}")
    return " ".join(filter(None, [user_options, *own_options]))


def make_in_background(environment: Mapping[str, str] = os.environ) -> None:
    """Make an archive in the background if there is none: in a process of its own, of the lowest priority.

    It ends by itself, after some 20 s, and at the latest after ``TIMEOUT_S``.
    """
    if any(word in environment.get(name, "") for name in _JAVA_OPTIONS for word in _SHARING_OPTIONS):
        return
    archive = ClassArchive.of_machine(environment)
    if archive is None or not archive.is_due():
        return
    command = [sys.executable, "-m", __name__]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(  # the shell ends at once, and its child need not be waited for
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=archive.folder, start_new_session=True, check=False, timeout=10,
        )  # fmt: skip


@dataclass(frozen=True)
class ClassArchive:
    """The archive for this machine's Java and Spark, which may not exist yet."""

    folder: Path
    key: str

    @classmethod
    def of_machine(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the archive for this environment; None: there is no Java, no Spark, or no folder of the user's own."""
        try:
            folder = _cache_folder(environment)
            return None if folder is None else cls(folder, _key(environment))
        except (OSError, RuntimeError, ValueError):
            return None

    def find(self) -> Path | None:
        """Return the archive's path, if it exists and has the size in its name; None: it does not."""
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"spark-{self.key}-*.jsa"):
                if path.stem.endswith(f"-{path.stat().st_size}"):
                    with contextlib.suppress(OSError):
                        os.utime(path)  # it is used: others are removed before it
                    return path
        return None

    def is_due(self) -> bool:
        """Return whether there is no archive, and no attempt to make one was made within a day."""
        try:
            return self.find() is None and time.time() - self._attempt_marker.stat().st_mtime > RETRY_AFTER_S
        except FileNotFoundError:
            return os.access(self.folder, os.W_OK)
        except OSError:
            return False

    def make(self) -> Path | None:
        """Make the archive, unless it exists or another process is making it; returns its path, None if there is
        none."""
        with contextlib.suppress(OSError), hold_lock(self.folder / "making.lock", 0) as locked:
            if locked and self.find() is None:
                self._attempt_marker.touch()
                self._remove_old()
                with self._scratch() as scratch:
                    archive = scratch / "spark.jsa"
                    if train(archive, scratch):
                        fsync_file(archive)
                        archive.rename(self.folder / f"spark-{self.key}-{archive.stat().st_size}.jsa")
                        self._attempt_marker.unlink()
        return self.find()

    @property
    def _attempt_marker(self) -> Path:
        return self.folder / f"spark-{self.key}.tried"

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        scratch = Path(tempfile.mkdtemp(prefix="making-", dir=self.folder))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _remove_old(self) -> None:
        """Remove all archives but those used last, and what killed attempts have left. A JVM that uses one keeps it."""
        now = time.time()
        used = {path: path.stat().st_mtime for path in self.folder.glob("spark-*.jsa")}
        kept = sorted(used, key=lambda path: used[path], reverse=True)[: MAX_ARCHIVES - 1]
        for path, when in used.items():
            if path not in kept or now - when > MAX_AGE_S or path.name.startswith(f"spark-{self.key}-"):
                path.unlink(missing_ok=True)
        for path in self.folder.glob("spark-*.tried"):
            if now - path.stat().st_mtime > RETRY_AFTER_S:
                path.unlink(missing_ok=True)
        for folder in self.folder.glob("making-*"):
            if now - folder.stat().st_mtime > _STALE_FOLDER_S:
                shutil.rmtree(folder, ignore_errors=True)


def train(archive: Path, scratch: Path) -> bool:
    """Start Spark in a process of its own, which writes the archive at its end; returns whether it did.

    Args:
        scratch: the process's working folder, which is removed afterwards.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _JAVA_OPTIONS}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    with subprocess.Popen(
        [sys.executable, "-m", "ferryman.engine.runner.class_archive", str(archive)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=scratch, env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            return process.wait(TIMEOUT_S) == 0 and archive.stat().st_size > 0
        except (OSError, subprocess.TimeoutExpired):
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also its JVM, if it was stopped


def _cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the user's cache folder; None if others may write there, since code in an archive is run."""
    configured = environment.get("XDG_CACHE_HOME", "")
    folder = Path(configured if os.path.isabs(configured) else Path.home() / ".cache", "ferryman")
    folder.mkdir(mode=0o700, parents=bool(configured) or folder.parents[1].is_dir(), exist_ok=True)
    status = folder.stat()
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None


def _key(environment: Mapping[str, str]) -> str:
    """Return a hash of what an archive depends on: Java, the jars, and the class path.

    Raises:
        OSError, ValueError: there is no Java, or no Spark.
    """
    java = java_command(environment)
    package = importlib.util.find_spec("pyspark")
    if java is None or package is None or package.origin is None:
        raise ValueError("no Java or no Spark")
    home = Path(java).resolve().parents[1]
    jars = Path(environment.get("SPARK_HOME") or Path(package.origin).parent, "jars")
    files = [home / "bin" / "java", *(home / "lib" / name for name in ("modules", "server/libjvm.so"))]
    with os.scandir(jars) as entries:
        files += [Path(entry.path) for entry in sorted(entries, key=lambda entry: entry.name)]
    digest = hashlib.blake2b(_FORMAT, digest_size=8)
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    for name in _CLASS_PATH:
        digest.update(f"{name}={environment.get(name, '')}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


if __name__ == "__main__":
    os.nice(19)
    if (archive_of_machine := ClassArchive.of_machine()) is not None:
        archive_of_machine.make()
