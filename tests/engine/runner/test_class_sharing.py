"""The archive of Spark's classes: which one fits, when it is made, what is removed, and that nothing depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferryman.engine.runner import class_sharing
from ferryman.engine.runner.class_sharing import (
    MAX_AGE_S,
    MAX_ARCHIVES,
    RETRY_AFTER_S,
    ClassArchive,
    java_options,
    make_in_background,
)
from ferryman.storage.locks import hold_lock

Environment = dict[str, str]


@pytest.fixture
def machine(tmp_path: Path) -> Environment:
    """A Java, a Spark and a cache folder."""
    for name in ("jdk/bin/java", "jdk/lib/modules", "jdk/lib/server/libjvm.so", "spark/jars/a.jar", "spark/jars/b.jar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "jdk/bin/java").chmod(0o755)
    return {
        "JAVA_HOME": str(tmp_path / "jdk"),
        "SPARK_HOME": str(tmp_path / "spark"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def of(environment: Environment) -> ClassArchive:
    """The archive that fits."""
    found = ClassArchive.of_machine(environment)
    assert found is not None
    return found


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs of Spark that write an archive: here they only write a file."""
    trained: list[Path] = []

    def train(archive: Path, _scratch: Path) -> bool:
        archive.write_bytes(b"classes")
        trained.append(archive)
        return True

    monkeypatch.setattr(class_sharing, "train", train)
    return trained


def test_it_is_for_one_java_and_one_set_of_jars(machine: Environment, tmp_path: Path) -> None:
    """Another Java, another jar, a newer build of one or another class path: another archive. Else the same."""
    keys = [of(machine).key]
    assert of(machine).key == keys[0]

    (tmp_path / "jdk/lib/modules").write_text("a newer build")
    keys.append(of(machine).key)
    (tmp_path / "spark/jars/b.jar").write_text("a newer version")
    keys.append(of(machine).key)
    (tmp_path / "spark/jars/c.jar").touch()
    keys.append(of(machine).key)
    keys.append(of({**machine, "HADOOP_CONF_DIR": "/etc/hadoop"}).key)
    (tmp_path / "jdk").rename(tmp_path / "jdk-21")
    keys.append(of({**machine, "JAVA_HOME": str(tmp_path / "jdk-21")}).key)

    assert len(set(keys)) == len(keys)


def test_it_is_made_once(machine: Environment, training: list[Path]) -> None:
    """And left as one file with its size in its name, without scratch."""
    archive = of(machine)
    assert archive.find() is None

    made = archive.make()

    assert made == archive.folder / f"spark-{archive.key}-7.jsa" == archive.make() == archive.find()
    assert len(training) == 1
    assert sorted(p.name for p in archive.folder.iterdir()) == ["making.lock", made.name]


def test_one_that_is_cut_off_is_not_used(machine: Environment, training: list[Path]) -> None:
    """A JVM would crash on it. It is made again."""
    made = of(machine).make()
    assert made is not None
    os.truncate(made, 3)

    assert of(machine).find() is None
    assert of(machine).make() == made
    assert made.stat().st_size == 7


def test_one_at_a_time(machine: Environment, training: list[Path]) -> None:
    """Whoever finds another process at it goes on without."""
    archive = of(machine)
    with hold_lock(archive.folder / "making.lock", 0):
        assert archive.make() is None
    assert not training


def test_old_ones_are_removed(machine: Environment, training: list[Path]) -> None:
    """What was used last stays, unless it was long ago; what a killed attempt has left goes."""
    folder = of(machine).folder
    now = time.time()
    for number in range(MAX_ARCHIVES + 2):
        (folder / f"spark-{number}-0.jsa").touch()
        os.utime(folder / f"spark-{number}-0.jsa", (now - number * MAX_AGE_S / 3 + 60,) * 2)
    (folder / "making-killed").mkdir()
    os.utime(folder / "making-killed", (0, 0))
    (folder / "making-now").mkdir()
    (folder / "spark-0.tried").touch()
    os.utime(folder / "spark-0.tried", (0, 0))

    made = of(machine).make()

    assert made is not None
    kept = {f"spark-{number}-0.jsa" for number in range(4)}
    assert {p.name for p in folder.iterdir()} == {"making.lock", "making-now", made.name, *kept}


def test_using_one_keeps_it(machine: Environment, training: list[Path]) -> None:
    """It is as new as its last use."""
    made = of(machine).make()
    assert made is not None
    os.utime(made, (0, 0))
    of(machine).find()
    assert time.time() - made.stat().st_mtime < MAX_AGE_S


def test_what_cannot_be_made_is_tried_once_a_day(machine: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, a JVM that cannot: nothing is left but a note of the attempt."""
    monkeypatch.setattr(class_sharing, "train", lambda archive, _: archive.write_bytes(b"half") < 0)
    archive = of(machine)
    assert archive.is_due()

    assert archive.make() is None

    assert sorted(p.name for p in archive.folder.iterdir()) == ["making.lock", f"spark-{archive.key}.tried"]
    assert not archive.is_due()
    os.utime(archive.folder / f"spark-{archive.key}.tried", (time.time() - RETRY_AFTER_S - 60,) * 2)
    assert archive.is_due()


def test_a_training_run_that_fails_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing, and takes what it started with it."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where none is
    assert not class_sharing.train(tmp_path / "spark.jsa", tmp_path)
    assert not list(tmp_path.iterdir())


def no_folder(machine: Environment, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()


def of_others(machine: Environment, tmp_path: Path) -> None:
    (tmp_path / "cache" / "ferryman").mkdir(parents=True)
    (tmp_path / "cache" / "ferryman").chmod(0o777)  # anybody may put an archive there, and it would be run


def no_java(machine: Environment, tmp_path: Path) -> None:
    (tmp_path / "jdk" / "bin" / "java").unlink()


def no_home(machine: Environment, tmp_path: Path) -> None:
    del machine["XDG_CACHE_HOME"]


@pytest.mark.parametrize("trouble", [no_folder, of_others, no_java, no_home])
def test_without_a_place_for_it(
    machine: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: object
) -> None:
    """There is none, and nothing is started to make one."""
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    assert callable(trouble)
    trouble(machine, tmp_path)

    assert ClassArchive.of_machine(machine) is None
    assert java_options("-Xmx1g", queries=True, environment=machine) == "-Xmx1g"
    make_in_background(machine)
    assert not (tmp_path / "nowhere").exists()


def test_it_is_made_in_the_background(machine: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that nobody waits for; not when it is there, and not when the user decided about sharing."""
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command))

    make_in_background({**machine, "SPARK_SUBMIT_OPTS": "-Xshare:off"})
    assert not started

    make_in_background(machine)
    assert [command[-3:] for command in started] == [[sys.executable, "-m", class_sharing.__name__]]

    archive = of(machine)
    (archive.folder / f"spark-{archive.key}-0.jsa").touch()
    make_in_background(machine)
    assert len(started) == 1


def test_ours_come_after_the_users_options(machine: Environment, training: list[Path]) -> None:
    """And a path with a space is one option."""
    machine["XDG_CACHE_HOME"] += " of mine"
    made = of(machine).make()

    theirs, _, ours = java_options("-Xss4m -Dmine=1", queries=False, environment=machine).partition(" -XX")
    assert theirs == "-Xss4m -Dmine=1"
    assert ours.startswith(f":TieredStopAtLevel=1 '-XX:SharedArchiveFile={made}' -XX:+VerifySharedSpaces -Xlog:")


def test_only_a_jvm_without_queries_leaves_its_second_compiler_out(machine: Environment) -> None:
    """Queries of DataFrame sources need it."""
    assert java_options("", queries=True, environment=machine) == ""
    assert java_options("", queries=False, environment=machine) == "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize("variable", ["", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"])
@pytest.mark.parametrize(
    ("theirs", "absent"),
    [
        ("-Xshare:off", "SharedArchiveFile"),
        ("-XX:SharedArchiveFile=/mine.jsa", "VerifySharedSpaces"),
        ("-XX:-TieredCompilation", "TieredStopAtLevel"),
    ],
)
def test_what_the_user_decided_we_do_not(
    machine: Environment, training: list[Path], variable: str, theirs: str, absent: str
) -> None:
    """Whether as Spark's setting or by a variable that Java reads."""
    of(machine).make()
    options = java_options("" if variable else theirs, queries=False, environment={**machine, variable: theirs})
    assert absent not in options
    assert options.split()
