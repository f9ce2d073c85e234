"""Search for what a dashboard shows: states, queues and intake queues in folders; plans and flows that were named."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferryman.dashboard.cells import command_of
from ferryman.dashboard.recorded import recorded_plan
from ferryman.errors import FerrymanError, UsageError
from ferryman.net.urls import strip_secrets
from ferryman.plan import Flow, Plan
from ferryman.plan.load import load, plan_file, spec_of
from ferryman.queues.place import IDENTITY as QUEUE_IDENTITY
from ferryman.state.state import IDENTITY, state_root
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.objects import ObjectPath, is_url

_DEPTH: Final = 3
"""Levels of folders below a named one that are searched."""
_FOLDERS: Final = 5_000
"""Folders that are searched at most."""
_PLAN_FILES: Final = 100
"""Files of a folder in which the name of a plan is looked for, at most."""
_PLAN_BYTES: Final = 1 << 20
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "site-packages", "venv", "lost+found"})
_INTAKE_FILE: Final = "queue.db"
_INTAKE_SCHEMES: Final = ("sqlite:///", "zookeeper://")


class PlanPlace(NamedTuple):
    """A plan and its state.

    Attributes:
        key: its name in URLs.
        spec: the PLAN argument of commands; ``PLAN`` if no file of it was found.
        state: the ``--state`` argument of commands; None: it is not needed.
        given: the plan, if its file was named.
    """

    key: str
    root: StatePath
    spec: str
    state: str | None
    given: Plan | None = None

    @property
    def exists(self) -> bool:
        return files.exists(self.root / IDENTITY)

    def plan(self) -> Plan:
        """Return the plan, or what its state has recorded of it.

        Raises:
            StateDamaged: the record cannot be read.
        """
        return self.given if self.given is not None else recorded_plan(self.root)

    def command(self, verb: str, *rest: str) -> str:
        """Return a command about this plan, see ``command_of``."""
        options = ["--state", self.state] if self.state is not None else []
        return command_of(*verb.split(), self.spec, *options, *rest)


class QueuePlace(NamedTuple):
    """A queue in a folder of queues."""

    key: str
    name: str
    folder: StatePath


class IntakePlace(NamedTuple):
    key: str
    url: str

    @property
    def label(self) -> str:
        return strip_secrets(self.url)


class FlowPlace(NamedTuple):
    """A flow whose file was named, with the places of its plans by their labels."""

    key: str
    flow: Flow
    spec: str
    plans: dict[str, PlanPlace]


class Found(NamedTuple):
    """Everything that there is to show, each by its key."""

    plans: dict[str, PlanPlace]
    queues: dict[str, QueuePlace]
    intakes: dict[str, IntakePlace]
    flows: dict[str, FlowPlace]


class Places:
    """Finds what there is to show. States that appear later are found, too.

    Args:
        named: folders, URLs of folders in object stores, URLs of intake queues, plan files.

    Raises:
        UsageError: a folder does not exist; nothing of this kind can be shown.
    """

    def __init__(self, named: Sequence[str]) -> None:
        self.named = list(named) or ["."]
        self._folders: list[StatePath] = []
        self._urls: list[str] = []
        self._plans: list[tuple[str, Plan | Flow, Path | None]] = []
        for text in self.named:
            self._add(text)

    def _add(self, text: str) -> None:
        if text.startswith(_INTAKE_SCHEMES):
            self._urls.append(text)
        elif is_url(text):
            self._folders.append(files.path_of(text))
        elif Path(text).is_dir():
            self._folders.append(Path(text).absolute())
        elif text.endswith(".py") or ":" in text:
            self._plans.append((text, load(text), plan_file(text)))
        else:
            raise UsageError(f"{text}: there is no such folder. Give folders of states, a plan file, or neither.")

    def find(self) -> Found:
        """Search for what there is now."""
        found, plan_files = Found({}, {}, {}, {}), _PlanFiles()
        for spec, what, file in self._plans:
            self._add_named(found, spec, what, file)
        roots = {place.root for place in found.plans.values()}
        for folder in self._folders:
            for kind, path in _search_folder(folder):
                if kind == "state" and path not in roots:
                    roots.add(path)
                    key = _free_key(found.plans, path.name, path)
                    found.plans[key] = PlanPlace(key, path, *_arguments(path, plan_files))
                elif kind == "queue":
                    key = _free_key(found.queues, path.name, path)
                    found.queues[key] = QueuePlace(key, path.name, path)
                elif kind == "intake":
                    self._add_intake(found, f"sqlite:///{path}")
        for url in self._urls:
            self._add_intake(found, url)
        return found

    def _add_named(self, found: Found, spec: str, what: Plan | Flow, file: Path | None) -> None:
        plans = {what.label(each): each for each in what.order} if isinstance(what, Flow) else {what.name: what}
        places = {}
        for label, plan in plans.items():
            own_spec = spec_of(spec, what, plan) if isinstance(what, Flow) else spec
            root, state = self._root_of(plan, file)
            key = _free_key(found.plans, root.name, root)
            places[label] = found.plans[key] = PlanPlace(key, root, own_spec, state, plan)
        if isinstance(what, Flow):
            key = _free_key(found.flows, what.name, Path(spec).absolute())
            found.flows[key] = FlowPlace(key, what, spec, places)

    def _root_of(self, plan: Plan, file: Path | None) -> tuple[StatePath, str | None]:
        """Return the state of a plan that was named: the one in a folder that was named too, else the usual one."""
        for folder in self._folders:
            for kind, path in _search_folder(folder):
                if kind == "state" and path.name == plan.key:
                    return path, _shown_path(path.parent)
        return state_root(plan, None, file), None

    def _add_intake(self, found: Found, url: str) -> None:
        key = _free_key(found.intakes, re.sub(r"\W+", "-", strip_secrets(url)).strip("-")[-40:], Path(url))
        found.intakes[key] = IntakePlace(key, url)


def _free_key(taken: dict[str, Any], name: str, path: StatePath) -> str:
    """Return a key for URLs that stays the same: the name, with a hash of the path if another one has that name, or if
    it has characters that have a meaning in URLs."""
    key = _NOT_IN_KEYS.sub("-", name)
    if key == name and key not in taken:
        return key
    return f"{key}~{hashlib.blake2b(str(path).encode(errors='surrogateescape'), digest_size=4).hexdigest()}"


_NOT_IN_KEYS: Final = re.compile(r"[^\w.~-]")


def _search_folder(folder: StatePath) -> Iterator[tuple[str, StatePath]]:
    """Yield the kind (state, queue, intake) and the path of all that a folder holds."""
    if isinstance(folder, ObjectPath):
        for name in files.list_names(folder):
            for kind, file in (("state", IDENTITY), ("queue", QUEUE_IDENTITY)):
                if files.exists(folder / name / file):
                    yield kind, folder / name
        return
    waiting, searched = [(folder, 0)], 0
    while waiting and searched < _FOLDERS:
        path, depth = waiting.pop(0)
        searched += 1
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError:  # removed meanwhile, or not ours to read
            continue
        names = {entry.name for entry in entries}
        if IDENTITY in names:
            yield "state", path
        elif QUEUE_IDENTITY in names:
            yield "queue", path
        else:
            if _INTAKE_FILE in names:
                yield "intake", path / _INTAKE_FILE
            if depth < _DEPTH:
                waiting += [(path / each.name, depth + 1) for each in entries if _is_searched(each)]


def _is_searched(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".") and entry.name != ".ferryman"
    try:
        return not hidden and entry.name not in _SKIPPED and entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


class _PlanFiles:
    """The plan files beside folders of states, each folder searched once. Files are read, not run."""

    def __init__(self) -> None:
        self._known: dict[Path, dict[str, Path]] = {}

    def find(self, root: Path) -> Path | None:
        """Return the file with the name of a state's plan in it."""
        folder = root.parent.parent
        if folder not in self._known:
            self._known[folder] = _plans_in(folder)
        return self._known[folder].get(root.name.rpartition("-v")[0])


def _plans_in(folder: Path) -> dict[str, Path]:
    """Return the names of plans in the files of a folder -> the first file that has it."""
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for file in sorted(folder.glob("*.py"))[:_PLAN_FILES]:
            if file.stat().st_size <= _PLAN_BYTES:
                for name in _PLAN_NAME.findall(file.read_text("utf-8", "replace")):
                    found.setdefault(name[1], file)
    return found


_PLAN_NAME: Final = re.compile(r"""\bPlan\(\s*(["'])(.*?)\1""")


def _arguments(root: StatePath, plan_files: _PlanFiles) -> tuple[str, str | None]:
    """Return the PLAN and the ``--state`` argument of commands about a state.

    The plan file is the one beside the folder of states that has the plan's name in it.
    """
    states = root.parent
    if isinstance(states, ObjectPath):
        return "PLAN", str(states)
    if isinstance(root, ObjectPath) or (file := plan_files.find(root)) is None:
        return "PLAN", _shown_path(states)
    usual = states == file.parent / ".ferryman"
    return _shown_path(file), None if usual else _shown_path(states)


def _shown_path(path: StatePath) -> str:
    """Return a path as one would type it here."""
    if isinstance(path, ObjectPath):
        return str(path)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def describe_error(error: BaseException) -> str:
    """Return an error as a page shows it: of ours its message, of anything else its kind and first line."""
    explained = files.explain_error("this page", error) if isinstance(error, Exception) else error
    if isinstance(explained, FerrymanError):
        return str(explained)
    first_line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}. This is a bug in Ferryman; the dashboard's own log has more."
