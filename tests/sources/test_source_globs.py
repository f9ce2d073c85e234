"""Globs: what they take, and which folders they let a walk leave out."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.errors import UsageError
from ferryman.sources.globs import Globs

TAKEN = [
    ("**/*", "a", True),
    ("**/*", "a/b/c.txt", True),
    ("**/*", ".hidden", True),
    ("**/*", ".git/config", True),
    ("**/*", "line\nend", True),
    ("**", "a/b", True),
    ("**/*.py", "setup.py", True),
    ("**/*.py", "a/b/setup.py", True),
    ("**/*.py", "setup.PY", False),
    ("**/*.py", "setup.pyc", False),
    ("**/*.py", "a.py/b", False),
    ("*.py", "setup.py", True),
    ("*.py", "a/setup.py", False),
    ("*", "a/b", False),
    ("docs/**", "docs/a/b", True),
    ("docs/**", "docs/a", True),
    ("docs/**", "docs", False),
    ("docs/", "docs/a/b", True),
    ("docs", "docs/a", False),
    ("./docs//*.md", "docs/a.md", True),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "ab", False),
    ("a/**/**/b", "a/b", True),
    ("a**b", "axxb", True),
    ("a**b", "ax/xb", False),
    ("?.txt", "a.txt", True),
    ("?.txt", "ab.txt", False),
    ("a?b", "a/b", False),
    ("[ab].txt", "b.txt", True),
    ("[ab].txt", "c.txt", False),
    ("[!ab].txt", "c.txt", True),
    ("[!a]", "/", False),
    ("x[+-9]y", "x/y", False),
    ("[*]", "*", True),
    ("[*]", "a", False),
    ("[]]", "]", True),
    ("[a", "[a", True),
    (r"a\b", r"a\b", True),
    ("a.b", "axb", False),
    ("a+(b)|c^$", "a+(b)|c^$", True),
    ("*.{md,rst}", "a.rst", True),
    ("*.{md,rst}", "a.txt", False),
    ("{a/b,c}/x", "a/b/x", True),
    ("{a,{b,c}}/x", "c/x", True),
    ("a{b}c", "a{b}c", True),
    ("[{]a,b}", "{a,b}", True),
    ("ça va.txt", "ça va.txt", True),
]


@pytest.mark.parametrize(("include", "path", "taken"), TAKEN)
def test_an_include_takes(include: str, path: str, taken: bool) -> None:
    """A glob is matched against the whole path relative to the root."""
    assert Globs(include, None).selects(path) is taken


EXCLUDED = [
    ("**/*.tmp", "a.tmp", True),
    ("**/*.tmp", "a/b.tmp", True),
    ("*.tmp", "a/b.tmp", False),
    ("build", "build", True),
    ("build", "build/a/b", True),
    ("build", "src/build/a", False),
    ("**/build", "src/build/a", True),
    ("build/**", "build/a", True),
    ("build/**", "build", False),
    ("**/.*", ".git/config", True),
    ("**/.*", "a/.b/c/d", True),
    ("**/.*", "a/b.c", False),
    ("**", "a", True),
]


@pytest.mark.parametrize(("exclude", "path", "excluded"), EXCLUDED)
def test_an_exclude_leaves_out(exclude: str, path: str, excluded: bool) -> None:
    """An exclude wins, and takes out with a folder all that is in it."""
    assert Globs("**/*", exclude).selects(path) is not excluded


WALKED = [
    ("**/*", None, "a/b", True),
    ("docs/**/*.md", None, "", True),
    ("docs/**/*.md", None, "docs", True),
    ("docs/**/*.md", None, "docs/a/b", True),
    ("docs/**/*.md", None, "src", False),
    ("a/*/c/*.md", None, "a/b", True),
    ("a/*/c/*.md", None, "a/b/c", True),
    ("a/*/c/*.md", None, "a/b/d", False),
    ("a/*/c/*.md", None, "a/b/c/d", False),
    ("*.md", None, "a", False),
    (["*.md", "x/*"], None, "x", True),
    ("**/*", "build", "build", False),
    ("**/*", "build/**", "build", False),
    ("**/*", "build/", "build", False),
    ("**/*", "**/node_modules/**", "a/node_modules", False),
    ("**/*", "build/*.tmp", "build", True),
    ("**/*", "build/*", "build", True),
    ("**/*", "**", "", False),
    ("**/*", "*/**", "", True),
    ("**/*", "*/**", "a", False),
    ("**/*", "vendor", "vendor/below", False),
]


@pytest.mark.parametrize(("include", "exclude", "folder", "walked"), WALKED)
def test_a_folder_is_walked_only_if_it_can_matter(
    include: str | list[str], exclude: str | None, folder: str, walked: bool
) -> None:
    """A walk leaves out what no glob reaches."""
    assert Globs(include, exclude).may_contain(folder) is walked


names = st.sampled_from(["a", "b", "ab", ".a", "a.py", "b.py"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
globs = st.lists(
    st.sampled_from(["**", "*", "a", "a*", "*.py", "?", "[ab]", "{a,b.py}", ".*"]), min_size=1, max_size=4
).map("/".join)


@given(include=st.lists(globs, min_size=1, max_size=2), exclude=st.lists(globs, max_size=2), path=paths)
def test_no_walk_leaves_out_what_is_taken(include: list[str], exclude: list[str], path: str) -> None:
    """Pruning is only faster: every folder above a taken file is walked."""
    rules = Globs(include, exclude)
    if rules.selects(path):
        above = ["", *itertools.accumulate(path.split("/")[:-1], lambda a, b: f"{a}/{b}")]
        assert all(rules.may_contain(folder) for folder in above)


@pytest.mark.parametrize("include", ["**/*", "**", ["*.md", "**/*"]])
def test_everything_is_known_to_be_taken(include: str | list[str]) -> None:
    """The common case asks no glob at all."""
    assert Globs(include, None).everything
    assert not Globs(include, "a").everything
    assert not Globs("**/*.py", None).everything


@pytest.mark.parametrize(
    ("include", "says"),
    [
        ("/etc/*", "without a leading slash"),
        ("../x", "climb"),
        ("a/../b", "climb"),
        ("", "matches nothing"),
        (".", "matches nothing"),
        ([], "no file at all"),
        ([3], "as text"),
        ("[z-a]", "not a glob"),
    ],
)
def test_a_glob_that_cannot_be_meant_is_refused(include: str | list[str], says: str) -> None:
    """A glob that silently matched nothing would look like an empty folder."""
    with pytest.raises(UsageError, match=says):
        Globs(include, None)


def test_globs_travel() -> None:
    """They are pickled to the workers with their source."""
    assert pickle.loads(pickle.dumps(Globs("*.py", "a.py"))).selects("b.py")
