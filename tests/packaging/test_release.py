"""A release is made of a commit that is ready for it, and its files are the same wherever they are built."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import release

CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-03-01

- It can.

## [1.1.0] - 2026-02-01

- It could.
"""
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "ferryman"
version = "1.2.0"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["src/ferryman"]
"""
PIN = f"idna==3.10 \\\n    --hash=sha256:{'0' * 64}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose last commit is ready for release 1.2.0."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A maintainer")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "maintainer@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    files = {
        "CHANGELOG.md": CHANGELOG,
        "pyproject.toml": PYPROJECT,
        "requirements/run.txt": PIN,
        "src/ferryman/__init__.py": '__version__ = "1.2.0"\n',
        ".gitignore": "dist/\n",
    }
    root = tmp_path / "repository"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(root)], check=True)
    commit(root)
    return root


def commit(root: Path) -> None:
    release.git(root, "add", "--all")
    release.git(root, "commit", "--quiet", "--message", "A change")


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A commit that changes one file."""

    def change(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))
        commit(root)

    return change


def test_a_commit_that_is_ready_has_no_problems(root: Path) -> None:
    assert list(release.problems(root)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda root: (root / "new.py").write_text(""), r"not clean.*\n\?\? new\.py"),
        (lambda root: (root / "CHANGELOG.md").write_text("changed"), r"not clean.*\n M CHANGELOG\.md"),
        (lambda root: release.git(root, "switch", "--quiet", "-c", "topic"), "made on main, and this is topic"),
        (lambda root: release.git(root, "switch", "--quiet", "--detach"), "made on main, and this is no branch"),
        (lambda root: release.git(root, "tag", "v1.2.0"), r"The tag v1\.2\.0 exists"),
        (replace("src/ferryman/__init__.py", "1.2.0", "1.3.0"), r"says version 1\.2\.0, .*__init__\.py another"),
        (replace("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n"), r"has changes under \[Unreleased\]"),
        (replace("CHANGELOG.md", "[1.2.0]", "[1.2.1]"), r"no section for this version: ## \[1\.2\.0\]"),
        (replace("CHANGELOG.md", " - 2026-03-01", ""), r"gives no date for 1\.2\.0"),
        (replace("CHANGELOG.md", "- It can.", ""), r"says nothing about 1\.2\.0"),
        (replace("CHANGELOG.md", "## [1.2.0]", "## [2.0.0] - 2026-04-01\n\n- New.\n\n## [1.2.0]"), "a section above"),
    ],
)
def test_each_problem_is_found(root: Path, change: Callable[[Path], object], problem: str) -> None:
    """And nothing is built or tagged."""
    change(root)
    tags = release.git(root, "tag")

    with pytest.raises(release.ReleaseError, match=f"(?s){problem}"):
        release.release(root, [])

    assert release.git(root, "tag") == tags
    assert not (root / "dist").exists()


def test_a_tagged_commit_needs_its_tag_and_no_branch(root: Path) -> None:
    """As it is checked out to be published."""
    assert list(release.problems(root, tagged=True)) == ["This commit is of version 1.2.0, and has no tag v1.2.0."]
    release.git(root, "tag", "v1.2.0")
    release.git(root, "switch", "--quiet", "--detach")
    assert list(release.problems(root, tagged=True)) == []


def test_a_dry_run_does_everything_but_the_tag(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both distributions and the list of what an installation consists of; then the release itself tags."""
    release.release(root, ["--dry-run"])

    names = ["ferryman-1.2.0-py3-none-any.whl", "ferryman-1.2.0.tar.gz", "ferryman.cdx.json"]
    assert sorted(path.name for path in (root / "dist").iterdir()) == names
    sbom = json.loads((root / "dist" / release.SBOM).read_text())
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["version"]) == ("CycloneDX", "1.2.0")
    assert [(part["name"], part["version"]) for part in sbom["components"]] == [("idna", "3.10")]
    assert release.git(root, "tag") == ""
    assert "the tag would be v1.2.0" in capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in (root / "dist").iterdir()}

    release.release(root, [])

    assert {path.name: path.read_bytes() for path in (root / "dist").iterdir()} == before
    assert release.git(root, "tag", "--points-at", "HEAD") == "v1.2.0"
    assert release.git(root, "status", "--porcelain") == ""


def test_builds_that_differ_are_refused(root: Path) -> None:
    """Here the time at which it is built gets into the wheel; what was in dist/ stays."""
    (root / "hatch_build.py").write_text(
        "import time, pathlib\n"
        "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n"
        "class Hook(BuildHookInterface):\n"
        "    def initialize(self, version, build_data):\n"
        "        pathlib.Path(self.root, 'src/ferryman/built.py').write_text(str(time.time_ns()))\n"
    )
    (root / "pyproject.toml").write_text(PYPROJECT + "\n[tool.hatch.build.targets.wheel.hooks.custom]\n")
    commit(root)
    (root / "dist").mkdir()
    (root / "dist" / "before").touch()

    with pytest.raises(release.ReleaseError, match=r"differ: ferryman-1\.2\.0-py3-none-any\.whl\.$"):
        release.release(root, ["--only-build"])

    assert [path.name for path in (root / "dist").iterdir()] == ["before"]


def test_differences_are_of_bytes_and_of_names(tmp_path: Path) -> None:
    """A file that only one of the two has is one."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, text in ((one, "1"), (other, "2")):
        folder.mkdir()
        (folder / "same").write_text("same")
        (folder / "changed").write_text(text)
    (other / "new").touch()

    assert release.differences(one, other) == ["changed", "new"]
