"""Make a release from the last commit: check it, build it twice and compare, list what it needs, tag it.

make release                      all of it; pushing the tag publishes (.github/workflows/release.yml)
make release ARGS=--dry-run       everything but the tag
make release ARGS=--only-build    no checks, no tag: for every change, in CI
make release ARGS=--tagged        a commit that has its tag: before it is published, in CI

The files are in dist/ then.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRANCH = "main"
SBOM = "ferryman.cdx.json"


class ReleaseError(Exception):
    """The commit cannot be released, or its files cannot be built; says why."""


def git(root: Path, *arguments: str) -> str:
    """Run git and return what it prints."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


def read_version(root: Path) -> str:
    version: str = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return version


def problems(root: Path, *, tagged: bool = False) -> Iterator[str]:
    """Yield what stands against a release of the last commit.

    Args:
        tagged: it has its tag already, and is on no branch.
    """
    version = read_version(root)
    tag = f"v{version}"
    if changed := git(root, "status", "--porcelain"):
        yield f"The work tree is not clean. Commit these changes or put them away:\n{changed}"
    if not tagged and (branch := git(root, "branch", "--show-current")) != BRANCH:
        yield f"Releases are made on {BRANCH}, and this is {branch or 'no branch'}: git switch {BRANCH}."
    if f'__version__ = "{version}"' not in (root / "src/ferryman/__init__.py").read_text("utf-8").splitlines():
        yield f"pyproject.toml says version {version}, src/ferryman/__init__.py another."
    if tagged and tag not in git(root, "tag", "--points-at", "HEAD").splitlines():
        yield f"This commit is of version {version}, and has no tag {tag}."
    if not tagged and git(root, "tag", "--list", tag):
        yield f"The tag {tag} exists. Raise the version in pyproject.toml and src/ferryman/__init__.py."
    yield from _changelog_problems((root / "CHANGELOG.md").read_text("utf-8"), version)


def _changelog_problems(text: str, version: str) -> Iterator[str]:
    sections = {name: (date, body.strip()) for name, date, body in _sections(text)}
    if sections.pop("Unreleased", ("", ""))[1]:
        yield f"CHANGELOG.md has changes under [Unreleased]: put them under [{version}]."
    if version not in sections:
        yield f"CHANGELOG.md has no section for this version: ## [{version}] - YYYY-MM-DD."
        return
    date, body = sections[version]
    if next(iter(sections)) != version:
        yield f"CHANGELOG.md has a section above that of {version}."
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        yield f"CHANGELOG.md gives no date for {version}: ## [{version}] - YYYY-MM-DD."
    if not body:
        yield f"CHANGELOG.md says nothing about {version}."


def _sections(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each section of the changelog its version, its date and its text."""
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    for part in parts:
        title, _, body = part.partition("\n")
        name, _, date = title.partition(" - ")
        yield name.strip().strip("[]"), date.strip(), body


def build(root: Path, folder: Path) -> None:
    """Build wheel and source distribution of the last commit into a folder.

    They are built twice, and the second time the files have another path and other times: whatever of the machine gets
    into a distribution makes the two differ.

    Raises:
        ReleaseError: they differ.
    """
    with tempfile.TemporaryDirectory(prefix="ferryman-release-") as scratch:
        first, second = Path(scratch, "first"), Path(scratch, "second", "time")
        for place in (first, second):
            _export(root, place / "source")
        for path in (second / "source").rglob("*"):
            os.utime(path)
        for place in (first, second):
            _build(place / "source", place / "dist", git(root, "log", "-1", "--format=%ct"))
        if differing := differences(first / "dist", second / "dist"):
            raise ReleaseError(f"Two builds of the same commit differ: {', '.join(differing)}.")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(first / "dist", folder)


def _export(root: Path, folder: Path) -> None:
    """Write the files of the last commit, and no others, to a folder."""
    command = ["git", "-C", str(root), "archive", "--format=tar", "HEAD"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def _build(source: Path, folder: Path, epoch: str) -> None:
    """Build with the packages that are installed: nothing is downloaded."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    _run(command, source, {**os.environ, "SOURCE_DATE_EPOCH": epoch})


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of files that are not in both folders with the same bytes."""
    names = {path.name for folder in (one, other) for path in folder.iterdir()}
    return sorted(name for name in names if _bytes(one / name) != _bytes(other / name))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def write_sbom(root: Path, path: Path) -> None:
    """Write what an installation consists of, by requirements/run.txt, in CycloneDX."""
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "requirements/run.txt"]
    command += ["--pyproject", "pyproject.toml", "--mc-type", "library", "--output-reproducible"]
    command += ["--output-format", "JSON", "--output-file", str(path.absolute())]
    _run(command, root, {**os.environ, "SOURCE_DATE_EPOCH": git(root, "log", "-1", "--format=%ct")})


def _run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def release(root: Path, arguments: Sequence[str]) -> None:
    """Do what the arguments say, and print it.

    Raises:
        ReleaseError: this commit is not released.
    """
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--dry-run", action="store_true", help="everything but the tag")
    modes.add_argument("--only-build", action="store_true", help="no checks, no tag")
    modes.add_argument("--tagged", action="store_true", help="the commit has its tag")
    options = parser.parse_args(arguments)

    if not options.only_build and (found := list(problems(root, tagged=options.tagged))):
        raise ReleaseError("\n".join(found))
    dist = root / "dist"
    build(root, dist)
    write_sbom(root, dist / SBOM)
    for path in sorted(dist.iterdir()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}")
    tag = f"v{read_version(root)}"
    if options.only_build or options.tagged:
        return
    if options.dry_run:
        print(f"release: not tagged, for this was tried only; the tag would be {tag}")
        return
    git(root, "tag", "--annotate", tag, "--message", f"Ferryman {tag[1:]}")
    print(f"release: tagged {tag}; this publishes it: git push origin {BRANCH} {tag}")


def main() -> int:
    try:
        release(ROOT, sys.argv[1:])
    except ReleaseError as e:
        print(f"release: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
