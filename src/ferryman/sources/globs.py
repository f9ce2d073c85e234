"""Which paths of a tree are taken: globs to include, globs to exclude.

A glob is matched against the whole path relative to the root, case-sensitively: ``*`` and ``?`` stay within one name,
``[a-z]`` and ``[!a-z]`` are one character, ``**`` between slashes is any number of folders (also none), ``{a,b}`` is
either. A name in brackets, ``[*]``, stands for itself. Names that begin with a dot are names like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from ferryman.errors import UsageError

_BRACES = re.compile(r"(?<!\[)\{([^{}]*,[^{}]*)\}")


class Globs:
    """Includes and excludes over paths relative to a root, with ``/`` between names; "" is the root itself.

    An include takes files. An exclude wins over every include, and one that matches a folder leaves out all that is
    in it, as with rsync and .gitignore: ``build``, ``**/node_modules``, ``**/.*``.

    Raises:
        UsageError: a glob that can match nothing (absolute, with ``..``, empty), naming it.
    """

    def __init__(self, include: str | Sequence[str], exclude: str | Sequence[str] | None) -> None:
        included = _parsed("include", include)
        excluded = _parsed("exclude", exclude or [])
        if not included:
            raise UsageError("include=[] would take no file at all: leave it out to take every file, or give a glob.")
        self.everything = (["**", "*"] in included or ["**"] in included) and not excluded
        """Nothing is left out: ``takes`` need not be asked."""
        self._included = _either(included, _path)
        self._reached = _either(included, _reach)
        self._excluded = _either(excluded, lambda glob: _path(glob) + _BELOW)
        self._pruned = _either(excluded, lambda glob: _path(glob[:-1] if glob[-1] == "**" else glob) + _BELOW)

    def takes(self, path: str) -> bool:
        """Is the file at this path taken?"""
        return self._included.fullmatch(path) is not None and self._excluded.fullmatch(path) is None

    def walks(self, folder: str) -> bool:
        """Can anything below this folder be taken? False only if nothing can."""
        return self._reached.fullmatch(folder) is not None and self._pruned.fullmatch(folder) is None


_BELOW = "(?:/.*)?"
_NOTHING = "(?!)"


def _either(globs: list[list[str]], regex: Callable[[list[str]], str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{regex(glob)})" for glob in globs) or _NOTHING, re.DOTALL)


def _parsed(option: str, globs: str | Sequence[str]) -> list[list[str]]:
    """Each glob as the list of its names, braces expanded."""
    whole = [globs] if isinstance(globs, str) else list(globs)
    return [_names(option, glob) for one in whole for glob in _expanded(option, one)]


def _expanded(option: str, glob: object) -> list[str]:
    if not isinstance(glob, str):
        raise UsageError(f"{option}={glob!r}: give a glob, or a list of globs, as text.")
    braces = _BRACES.search(glob)
    if braces is None:
        return [glob]
    rest = glob[: braces.start()], glob[braces.end() :]
    return [full for choice in braces[1].split(",") for full in _expanded(option, choice.join(rest))]


def _names(option: str, glob: str) -> list[str]:
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
        re.compile(_path(names))
    except re.error as e:
        raise UsageError(f"{option}={glob!r} is not a glob: {e.msg}.") from None
    return names


def _path(names: list[str]) -> str:
    """Regular expression of the paths that match."""
    parts = [("(?:.*/)?" if name == "**" else _name(name) + "/") for name in names[:-1]]
    last = names[-1:] or ["**"]
    return "".join(parts) + (".*" if last == ["**"] else _name(last[0]))


def _reach(names: list[str]) -> str:
    """Regular expression of the folders in which, or below which, a path may match."""
    if "**" in names[:1]:
        return ".*"
    if len(names) == 1:
        return ""
    return f"(?:{_name(names[0])}(?:/{_reach(names[1:])})?)?"


_TOKEN = re.compile(r"\*+|\?|\[(!?)(\]?[^\]]*)\]|.", re.DOTALL)


def _name(glob: str) -> str:
    if not glob.strip("*"):
        return "[^/]+"  # the root, "", is not a name
    return _TOKEN.sub(_token, glob)


def _token(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if len(text) == 1:
        return re.escape(text)
    characters = re.sub(r"([\\\[\]&~|^])", r"\\\1", found[2])
    return f"(?!/)[{'^' if found[1] else ''}{characters}]"
