"""Selection of paths in a tree by globs to include and globs to exclude.

A glob is matched against the whole path relative to the root, case-sensitively: ``*`` and ``?`` stay within one
name, ``[a-z]`` and ``[!a-z]`` are one character, ``**`` between slashes is any number of folders (also none),
``{a,b}`` is either. A name in brackets, ``[*]``, stands for itself. Names that begin with a dot are names like any
other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from ferryman.errors import UsageError

_BRACES = re.compile(r"(?<!\[)\{([^{}]*,[^{}]*)\}")


class Globs:
    """Includes and excludes over paths relative to a root, with ``/`` between names; "" is the root itself.

    An include selects files. An exclude wins over every include, and one that matches a folder excludes everything in
    it, as with rsync and .gitignore: ``build``, ``**/node_modules``, ``**/.*``.

    Raises:
        UsageError: a glob that can match nothing (absolute, with ``..``, empty), naming it.
    """

    def __init__(self, include: str | Sequence[str], exclude: str | Sequence[str] | None) -> None:
        included = _parse_globs("include", include)
        excluded = _parse_globs("exclude", exclude or [])
        if not included:
            raise UsageError("include=[] would take no file at all: leave it out to take every file, or give a glob.")
        self.everything = (["**", "*"] in included or ["**"] in included) and not excluded
        """Whether all files are selected, so that ``selects`` need not be called."""
        self._included = _any_of(included, _path_regex)
        self._reached = _any_of(included, _folder_regex)
        self._excluded = _any_of(excluded, lambda glob: _path_regex(glob) + _ANYTHING_BELOW)
        self._pruned = _any_of(
            excluded, lambda glob: _path_regex(glob[:-1] if glob[-1] == "**" else glob) + _ANYTHING_BELOW
        )

    def selects(self, path: str) -> bool:
        """Return whether the file at this path is selected."""
        return self._included.fullmatch(path) is not None and self._excluded.fullmatch(path) is None

    def may_contain(self, folder: str) -> bool:
        """Return whether a file below this folder may be selected; False only if none can be."""
        return self._reached.fullmatch(folder) is not None and self._pruned.fullmatch(folder) is None


_ANYTHING_BELOW = "(?:/.*)?"
_NOTHING = "(?!)"


def _any_of(globs: list[list[str]], regex: Callable[[list[str]], str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{regex(glob)})" for glob in globs) or _NOTHING, re.DOTALL)


def _parse_globs(option: str, globs: str | Sequence[str]) -> list[list[str]]:
    """Split each glob into the list of its names, with braces expanded."""
    whole = [globs] if isinstance(globs, str) else list(globs)
    return [_split_glob(option, glob) for one in whole for glob in _expand_braces(option, one)]


def _expand_braces(option: str, glob: object) -> list[str]:
    if not isinstance(glob, str):
        raise UsageError(f"{option}={glob!r}: give a glob, or a list of globs, as text.")
    braces = _BRACES.search(glob)
    if braces is None:
        return [glob]
    rest = glob[: braces.start()], glob[braces.end() :]
    return [full for choice in braces[1].split(",") for full in _expand_braces(option, choice.join(rest))]


def _split_glob(option: str, glob: str) -> list[str]:
    if glob.startswith("/"):
        raise UsageError(f"{option}={glob!r}: globs are relative to the root of the source, without a leading slash.")
    names = [name for name in glob.split("/") if name not in ("", ".")]
    if ".." in names:
        raise UsageError(f"{option}={glob!r}: a glob cannot climb out of the root; start the source further up.")
    if not names:
        raise UsageError(f"{option}={glob!r} matches nothing; '**/*' is every file.")
    if glob.endswith("/"):
        names.append("**")
    names = names[:1] + [name for before, name in pairwise(names) if (before, name) != ("**", "**")]
    try:
        re.compile(_path_regex(names))
    except re.error as e:
        raise UsageError(f"{option}={glob!r} is not a glob: {e.msg}.") from None
    return names


def _path_regex(names: list[str]) -> str:
    """Return a regular expression for the paths that match."""
    parts = [("(?:.*/)?" if name == "**" else _name_regex(name) + "/") for name in names[:-1]]
    last = names[-1:] or ["**"]
    return "".join(parts) + (".*" if last == ["**"] else _name_regex(last[0]))


def _folder_regex(names: list[str]) -> str:
    """Return a regular expression for the folders in or below which a path may match."""
    if "**" in names[:1]:
        return ".*"
    if len(names) == 1:
        return ""
    return f"(?:{_name_regex(names[0])}(?:/{_folder_regex(names[1:])})?)?"


_TOKEN = re.compile(r"\*+|\?|\[(!?)(\]?[^\]]*)\]|.", re.DOTALL)


def _name_regex(glob: str) -> str:
    if not glob.strip("*"):
        return "[^/]+"  # the root, "", is not a name
    return _TOKEN.sub(_token_regex, glob)


def _token_regex(match: re.Match[str]) -> str:
    text = match[0]
    if text[0] == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if len(text) == 1:
        return re.escape(text)
    characters = re.sub(r"([\\\[\]&~|^])", r"\\\1", match[2])
    return f"(?!/)[{'^' if match[1] else ''}{characters}]"


# Files that programs make beside a document while they work on it.

_UNFINISHED: Final = re.compile(
    r"~\$.*|\.~lock\..*#|.*~|#.*#|\.#.*|\.?[^/]*\.sw[a-px]|\.goutputstream-.*|\.nfs[0-9a-f]{8,}|\.fuse_hidden.*|"
    r".*\.(part|partial|filepart|crdownload|download|tmp)",
    re.DOTALL | re.IGNORECASE,
)


def is_unfinished(name: str) -> bool:
    """Return whether a file's name, without folders, is that of a swap, lock, backup or partial file."""
    return _UNFINISHED.fullmatch(name) is not None
