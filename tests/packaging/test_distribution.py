"""What is uploaded to PyPI: the wheel and the source distribution, and an installation that knows nothing else."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from readme_renderer import markdown

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


class Built(NamedTuple):
    """Both files of a release."""

    wheel: Path
    sdist: Path


def build(source: Path, folder: Path, *targets: str) -> None:
    """Build with the packages that are installed: nothing is downloaded."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    for target in targets:
        command += ["-t", target]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Metadata:
    """Validated as PyPI does: names, versions, classifiers, licence.

    Raises:
        ExceptionGroup: what PyPI would refuse.
    """
    [text] = [data for name, data in members(wheel).items() if name.endswith(".dist-info/METADATA")]
    return Metadata.from_email(text, validate=True)


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """Every file of src/ferryman with its content, py.typed among them; no tests, no docs."""
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in (source / "ferryman").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = members(built.wheel)

    assert {name: data for name, data in packed.items() if ".dist-info/" not in name} == wanted
    assert "ferryman/py.typed" in packed
    assert {name.partition(".dist-info/")[2] for name in packed if ".dist-info/" in name} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_source_distribution_makes_the_same_wheel(built: Built, tmp_path: Path) -> None:
    """It has all that a build needs, what the tests need, and nothing that a developer's machine left behind."""
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    build(unpacked, tmp_path / "again", "wheel")
    [again] = (tmp_path / "again").glob("*.whl")

    assert members(again) == members(built.wheel)
    tops = {path.name for path in unpacked.iterdir()}
    assert {"LICENSE", "README.md", "Makefile", "docs", "requirements", "scripts", "src", "tests"} <= tops
    assert not [path for path in unpacked.rglob("*") if re.fullmatch(r"\.venv|__pycache__|.*\.pyc|\.tools", path.name)]


def test_the_metadata_is_what_pypi_accepts(built: Built) -> None:
    """Valid, with a one-line summary, authors, keywords, and what says that the package is typed."""
    said = metadata(built.wheel)

    assert said.name == "ferryman"
    assert said.summary == PROJECT["description"]
    assert len(said.summary or "") <= 512
    assert said.author
    assert said.keywords
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3.11"} <= set(
        said.classifiers or []
    )
    assert set(said.provides_extra or []) == {canonicalize_name(extra) for extra in PROJECT["optional-dependencies"]}


def test_the_readme_is_shown_by_pypi(built: Built) -> None:
    """It renders, and no link or picture in it is relative: on PyPI that would lead nowhere."""
    said = metadata(built.wheel)
    assert said.description_content_type == "text/markdown"

    page = markdown.render(said.description or "")

    assert page is not None
    assert "<h1>" in page or "<h1 " in page
    assert "<table>" in page
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def core() -> list[str]:
    """Packages that an installation without extras has, by requirements/run.txt."""
    text = (ROOT / "requirements" / "run.txt").read_text("utf-8")
    pins = [Requirement(line) for line in re.findall(r"^[A-Za-z][^\\\n]*?(?= \\$)", text, re.MULTILINE)]
    return [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate()]


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of a new environment: the wheel, the packages that it needs, and no others.

    The packages are links to those of this environment, so nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    [packages] = (folder / "lib").glob("python*/site-packages")
    for name in core():
        there = distribution(name)
        for top in {file.parts[0] for file in there.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(there.locate_file(top)))
    places = {**dict.fromkeys(("purelib", "platlib", "data"), str(packages)), "scripts": str(folder / "bin")}
    target = SchemeDictionaryDestination(places, interpreter=str(folder / "bin" / "python"), script_kind="posix")
    with WheelFile.open(built.wheel) as wheel:
        install(wheel, target, additional_metadata={"INSTALLER": b"installer"})
    return folder / "bin"


def call(programs: Path, folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """What a command of that environment prints in ``folder``; neither knows of this repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    spark = distribution("pyspark").locate_file("pyspark")  # the links lead there; there is an archive of its classes
    environment["SPARK_HOME"] = str(spark)
    return subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=400,
        check=False,
    )


def test_the_wheel_is_what_is_installed(programs: Path, tmp_path: Path) -> None:
    """Not the repository beside it; and no package of an extra is there to hide a missing dependency."""
    where = call(programs, tmp_path, programs / "python", "-c", "import ferryman; print(ferryman.__file__)")
    extra = call(programs, tmp_path, programs / "python", "-c", "import pytest")

    assert where.stdout.startswith(str(programs.parent)), where.stderr
    assert "No module named 'pytest'" in extra.stderr


def test_every_module_needs_the_core_only(programs: Path, tmp_path: Path) -> None:
    """All of the package can be imported without extras, but for what is loaded only where its extra is: writers of
    databases, plans of demos, the dashboard."""
    code = """
        import importlib, pkgutil, ferryman
        for module in pkgutil.walk_packages(ferryman.__path__, "ferryman."):
            if module.name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except (ImportError, ferryman.errors.UsageError) as e:
                print(module.name, e)
    """
    done = call(programs, tmp_path, programs / "python", "-c", textwrap.dedent(code))

    assert (done.returncode, done.stderr) == (0, "")
    needs = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    dashboard = {name: needs.pop(name) for name in [*needs] if name.startswith("ferryman.dashboard.")}
    assert needs.keys() == {
        "ferryman.cli.demo_site_plan",
        "ferryman.cli.demo_vectors_plan",
        "ferryman.destinations.sql.mysql",
        "ferryman.destinations.sql.postgresql",
    }
    assert needs["ferryman.cli.demo_site_plan"].endswith("pip install 'ferryman[web]'.")
    assert needs["ferryman.cli.demo_vectors_plan"].endswith("pip install 'ferryman[embed]'.")
    assert {why.rpartition(" ")[2] for why in dashboard.values()} <= {
        "'starlette'",
        "'uvicorn'",
        "'markupsafe'",
        "'jinja2'",
    }


@pytest.mark.spark
def test_the_demo_runs_without_the_repository(programs: Path, tmp_path: Path) -> None:
    """It ends with 0; the files broken on purpose are rejected and listed, all others are found."""
    done = call(programs, tmp_path, "ferryman", "demo")

    assert done.returncode == 0, done.stderr
    for name in ("undecodable", "dangling", "loop"):
        assert f"  broken/{name}.txt: " in done.stdout
    assert "NOT EXPECTED" not in done.stdout
    with sqlite3.connect(tmp_path / "ferryman-demo" / "index.db") as index:
        ids = {id for (id,) in index.execute("SELECT id FROM documents")}
    assert {"json/decoder.py", "broken/empty.txt", "broken/folder.txt/inside.txt"} <= ids
    assert not any("site-packages" in id for id in ids)
    assert "\njson/" in done.stdout

    question = ("ferryman", "status", "ferryman-demo/plan.py", "--state", "ferryman-demo/state", "--json")
    status = json.loads(call(programs, tmp_path, *question).stdout)
    assert status["balanced"]
    assert status["destinations"]["documents"]["delivered"] == len(ids)
    assert status["destinations"]["documents"]["rejected"] == 3

    again = call(programs, tmp_path, "ferryman", "demo")
    assert again.returncode == 0, again.stderr
    assert "Nothing has changed since the last run" in again.stdout
