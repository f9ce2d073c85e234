"""Holding a live queue against its layout, and fixing what can be fixed without a doubt.

Two readings are compared: a queue in use changes while it is read, and what only one of them shows is not a finding.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ferryman.errors import UsageError
from ferryman.intake import nodes
from ferryman.intake.errors import NodeInvalid
from ferryman.intake.job import JSON_NODES
from ferryman.intake.nodes import (
    ACCESS,
    BATCH_UUIDS,
    BATCHES,
    JOB_STATES,
    JOBS,
    LOCKS,
    SIZES,
    name_of,
    parent_of,
    skeleton,
)
from ferryman.intake.states import ACCESS as ACCESS_TABLE
from ferryman.intake.states import BATCH, JOB, JobList, JobState, Transitions, list_of
from ferryman.intake.store import Check, Conflict, Create, Delete, Op, StoredNode
from ferryman.intake.tree import KINDS, NodeTree
from ferryman.net.urls import redact

FAIL_AFTER_S: Final = 3600.0
"""Age in seconds from which a finding is a failure: younger nodes may be somebody's current work, and give a
warning."""


class AuditFinding(NamedTuple):
    """A node that is not as the layout says."""

    path: str
    rule: str
    age_s: float
    """How long ago the node was changed last."""
    level: Literal["WARN", "FAIL"]
    text: str


def audit(tree: NodeTree, *, repair: bool = False) -> list[AuditFinding]:
    """All findings, by path. ``repair``: what can be fixed is, each in one commit; the text says so."""
    before = problems(_read(tree), tree.clock())
    if not before:
        return []
    again = _read(tree)
    known = {(problem.path, problem.rule, problem.text) for problem in before}
    found = []
    for problem in problems(again, tree.clock()):
        if (problem.path, problem.rule, problem.text) in known:
            found.append(_dated(tree, problem, again, repair=repair))
    return sorted(found)


def _read(tree: NodeTree) -> Nodes:
    return {path: node for top in TOPS for path, node in tree.store.walk(top)}


def _dated(tree: NodeTree, problem: Problem, found: Nodes, *, repair: bool) -> AuditFinding:
    near = [found.get(path) for path in (problem.path, f"{problem.path}/status")]
    above = found.get(parent_of(problem.path))
    changed = [node.modified_s for node in near if node] or ([above.modified_s] if above else [])
    age = max(0.0, tree.clock() - max(changed)) if changed else 0.0
    text = problem.text
    if repair and problem.mend:
        try:
            tree.commit(list(problem.mend))
            text += " Repaired."
        except Conflict as e:
            text += f" Not repaired: {e}: it changes at this moment. Audit again."
    return AuditFinding(problem.path, problem.rule, age, "FAIL" if age >= FAIL_AFTER_S else "WARN", text)


# A queue as one JSON value, and back.

FORMAT: Final = 1
"""Format of a dump. A newer one is refused."""

TOPS: Final = (BATCH_UUIDS, BATCHES, JOBS, ACCESS, LOCKS)
NUMBERED: Final = (BATCHES, JOBS, *(f"{ACCESS}/{size}" for size in SIZES))
"""Folders whose children have numbers that are given once."""

COMMIT_NODES: Final = 500
COMMIT_BYTES: Final = 256 << 10
"""Most bytes in one commit of a restore: far below the 1 MiB that ZooKeeper's servers refuse."""

PAUSE: Final = f"{KINDS['ingest'].folder}/{KINDS['ingest'].node}"


def dumped(tree: NodeTree) -> dict[str, Any]:
    """All nodes that stay, by path: their data as text, or ``{"base64": …}`` where it is not text."""
    nodes = {path: node for top in TOPS for path, node in tree.store.walk(top) if not node.owner}
    return {
        "format": FORMAT,
        "dumped": tree.now(),
        "numbers": {path: nodes[path].numbered for path in NUMBERED if path in nodes},
        "nodes": {path: _value(node.data) for path, node in nodes.items()},
    }


def restored(tree: NodeTree, data: Mapping[str, Any]) -> None:
    """Make the nodes of a dump. Killed in the middle, it leaves the queue paused, and can be done again.

    Raises:
        UsageError: this is not a dump, or the queue holds something else; nothing was changed.
    """
    nodes, numbers = _checked(data)
    _refuse_other(tree, nodes)
    pausing = PAUSE not in nodes
    if pausing and tree.find(PAUSE) is None:
        tree.commit([Create(PAUSE)])
    for ops in _commits(tree, nodes):
        tree.commit(ops)
    for path, number in numbers.items():
        tree.store.advance(path, number)
    if pausing:
        tree.commit([Delete(PAUSE)])


def _commits(tree: NodeTree, nodes: Mapping[str, bytes]) -> Iterator[list[Op]]:
    """Yield commits that make the missing nodes, parents first, each of a size that a server takes."""
    paths = sorted(nodes, key=lambda path: path.split("/"))
    there = {path for top in TOPS for path, _ in tree.store.walk(top)}
    ops: list[Op] = []
    size = 0
    for path in paths:
        if path in there:
            continue
        if ops and (len(ops) >= COMMIT_NODES or size + len(nodes[path]) > COMMIT_BYTES):
            yield ops
            ops, size = [], 0
        ops.append(Create(path, nodes[path]))
        size += len(nodes[path])
    if ops:
        yield ops


def _refuse_other(tree: NodeTree, nodes: Mapping[str, bytes]) -> None:
    """A queue that holds anything but what a restore of this dump made."""
    expected = {*skeleton(), PAUSE}
    for top in TOPS:
        for path, node in tree.store.walk(top):
            if path not in expected and nodes.get(path) != node.data:
                raise UsageError(
                    f"{tree.store.url}: the queue is not empty: {path} is there. Nothing was changed. Restore into a "
                    "new one: another file, or another chroot."
                )


def _checked(data: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, int]]:
    """The nodes and numbers of a dump.

    Raises:
        UsageError: it is not one.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise UsageError("this is not a queue dump that this Ferryman reads: `ferryman intake dump` makes one.")
    listed, numbers = data.get("nodes"), data.get("numbers")
    if not isinstance(listed, Mapping) or not isinstance(numbers, Mapping):
        raise UsageError("this dump is damaged: it has no nodes, or no numbers. Use another.")
    nodes = {str(path): _data(str(path), value) for path, value in listed.items()}
    for path in nodes:
        if not path.startswith(tuple(f"{top}/" for top in TOPS)) and path not in TOPS:
            raise UsageError(f"this dump is damaged: {path} is not a queue node. Use another.")
    if not all(path in NUMBERED and isinstance(number, int) for path, number in numbers.items()):
        raise UsageError("this dump is damaged: its numbers are not integers. Use another.")
    return nodes, {str(path): int(number) for path, number in numbers.items()}


def _value(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _data(path: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass
    elif isinstance(value, Mapping) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise UsageError(f"this dump is damaged: the data of {path} is neither text nor base64. Use another.")


# The rules of the layout, each as a function of all nodes that gives what breaks it.

STALE_S: Final = 3600.0
"""A lock that stays, where locks live with a session, is nobody's after an hour."""

Nodes = Mapping[str, StoredNode]


@dataclass(frozen=True)
class Problem:
    """A node that breaks a rule, and what repairs it."""

    path: str
    rule: str
    text: str
    mend: tuple[Op, ...] = ()
    """Empty: an operator has to decide."""


def problems(found: Nodes, now: float) -> list[Problem]:
    """Everything that is wrong with these nodes."""
    below: dict[str, list[str]] = defaultdict(list)
    for path in found:
        below[parent_of(path)].append(name_of(path))
    tree = _LoadedTree(found, below, now)
    return [problem for rule in RULES for problem in rule(tree)]


@dataclass(frozen=True)
class _LoadedTree:
    nodes: Nodes
    below: Mapping[str, list[str]]
    now: float

    def json(self, path: str) -> dict[str, Any] | None:
        """The object at a path; None if there is none, for whatever reason."""
        try:
            return nodes.decoded(path, self.nodes[path].data)
        except (KeyError, NodeInvalid):
            return None

    def why_not(self, path: str, read: Callable[[str, bytes], object]) -> str:
        """Return the fault of a required node; "" if there is none."""
        if path not in self.nodes:
            return "It is not there."
        try:
            read(path, self.nodes[path].data)
        except NodeInvalid as e:
            return f"It {e.what}."
        return ""


def _folders(tree: _LoadedTree) -> Iterator[Problem]:
    """Every queue has these folders."""
    for path in nodes.skeleton():
        if path not in tree.nodes:
            yield Problem(path, "folder", "A folder of the layout is not there.", (Create(path),))


def _known_nodes(tree: _LoadedTree) -> Iterator[Problem]:
    """No nodes but those of the layout."""
    for path in tree.nodes:
        if not _LAYOUT.fullmatch(path):
            yield Problem(path, "unknown node", "The layout has no such node. Remove it if nothing uses it.")


def _batches(tree: _LoadedTree) -> Iterator[Problem]:
    """A batch has a submission and a status; its batchID leads to it."""
    for name in tree.below.get(BATCHES, ()):
        path = nodes.batch_path(name)
        yield from _status(tree, path, BATCH)
        if why := tree.why_not(f"{path}/submission", nodes.decoded):
            yield Problem(f"{path}/submission", "batch submission", why)
            continue
        uuid = nodes.submission_uuid(tree.json(f"{path}/submission") or {})
        if not uuid:
            continue
        try:
            at = f"{BATCH_UUIDS}/{nodes.mapped(uuid)}"
        except UsageError:
            yield Problem(f"{path}/submission", "batch uuid", f"Its batchID {uuid!r} cannot be a node's name.")
            continue
        if at not in tree.nodes:
            text = f"The batchID of {name} does not lead to it: this node is not there."
            yield Problem(at, "batch uuid", text, (Check(path), Create(at, name.encode())))
        elif tree.nodes[at].data != name.encode():
            other = tree.nodes[at].data.decode("utf-8", "backslashreplace")
            yield Problem(at, "batch uuid", f"{name} has this batchID, but it leads to {other!r}.")


def _uuids(tree: _LoadedTree) -> Iterator[Problem]:
    """A uuid leads to a batch."""
    for name in tree.below.get(BATCH_UUIDS, ()):
        path = f"{BATCH_UUIDS}/{name}"
        batch = tree.nodes[path].data.decode("utf-8", "backslashreplace")
        if nodes.batch_path(batch) not in tree.nodes:
            yield Problem(path, "uuid batch", f"It leads to batch {batch!r}, which is not there.", (Delete(path),))


def _jobs(tree: _LoadedTree) -> Iterator[Problem]:
    """A job has its nodes, is in the one list of its batch and in the one state that its status says."""
    listed: dict[str, list[str]] = defaultdict(list)
    for path in tree.nodes:
        if _LIST_ENTRY.fullmatch(path):
            listed[name_of(path)].append(path)
        elif _STATE_ENTRY.fullmatch(path):
            listed[nodes.job_of(name_of(path))].append(path)
    for job in tree.below.get(JOBS, ()):
        if job != "states":
            yield from _job(tree, job, listed.pop(job, []))
    for job, paths in listed.items():
        for path in paths:
            text = f"It lists {job}, which is not there."
            yield Problem(path, "list without job", text, (Delete(path),))


def _job(tree: _LoadedTree, job: str, listed: list[str]) -> Iterator[Problem]:
    path = nodes.job_path(job)
    bad = list(_status(tree, path, JOB))
    for name, read in (("bid", nodes.text_of), ("priority", nodes.whole_number), ("space_needed", nodes.whole_number)):
        if why := tree.why_not(f"{path}/{name}", read):
            bad.append(Problem(f"{path}/{name}", f"job {name}", why))
    for name in JSON_NODES:
        if f"{path}/{name}" in tree.nodes and (why := tree.why_not(f"{path}/{name}", nodes.decoded)):
            bad.append(Problem(f"{path}/{name}", f"job {name}", why))
    yield from bad
    if any(problem.path.endswith(("/status", "/bid", "/priority")) for problem in bad):
        return  # where it belongs is not known
    state = JobState((tree.json(f"{path}/status") or {})["status"])
    batch = tree.nodes[f"{path}/bid"].data.decode()
    priority = nodes.whole_number(path, tree.nodes[f"{path}/priority"].data)
    same = Check(f"{path}/status", tree.nodes[f"{path}/status"].version)
    yield from _entries(
        path, "job state", nodes.state_path(state, nodes.entry(priority, job)), listed, JOB_STATES, same
    )
    if nodes.batch_path(batch) not in tree.nodes:
        yield Problem(f"{path}/bid", "job batch", f"Its batch {batch!r} is not there.")
        return
    place = nodes.batch_path(batch, "states", list_of(state), job)
    folders = [folder for folder in (parent_of(parent_of(place)), parent_of(place)) if folder not in tree.nodes]
    yield from _entries(path, "job batch list", place, listed, BATCHES, same, folders)


def _entries(
    path: str, rule: str, place: str, listed: list[str], top: str, same: Op, folders: list[str] | None = None
) -> Iterator[Problem]:
    """Where it is listed below ``top`` is this one place. A repair holds only while the job has not moved."""
    inside = [one for one in listed if one.startswith(f"{top}/")]
    if inside == [place]:
        return
    wrong = [one for one in inside if one != place]
    mend: list[Op] = [same, *(Delete(one) for one in wrong)]
    if place not in inside:
        mend += [*(Create(folder) for folder in folders or []), Create(place)]
    where = ", ".join(sorted(inside)) or "nowhere"
    yield Problem(path, rule, f"It is listed in {where}; its place is {place}.", tuple(mend))


def _access(tree: _LoadedTree) -> Iterator[Problem]:
    """A request has a token and a status."""
    for size in SIZES:
        for name in tree.below.get(f"{ACCESS}/{size}", ()):
            path = nodes.access_path(size, name)
            yield from _status(tree, path, ACCESS_TABLE)
            if why := tree.why_not(f"{path}/token", nodes.decoded):
                yield Problem(f"{path}/token", "access token", why)


def _status(tree: _LoadedTree, path: str, table: Transitions[Any]) -> Iterator[Problem]:
    at = f"{path}/status"
    if why := tree.why_not(at, nodes.decoded):
        yield Problem(at, "status", why)
        return
    named = (tree.json(at) or {}).get("status")
    if named not in {state.value for state in table.states}:
        yield Problem(at, "status", f"It does not name a state, but {named!r}.")


def _locks(tree: _LoadedTree) -> Iterator[Problem]:
    """Locks that live with a session do; a lock's node is the one that its name maps to."""
    for path, node in tree.nodes.items():
        if _ITEM_LOCK.fullmatch(path) and not node.owner:
            old = tree.now - node.modified_s >= STALE_S
            text = "A lock without a session: nothing will release it."
            yield Problem(path, "stale lock", text, (Delete(path),) if old else ())
    for kind, what in KINDS.items():
        for name in tree.below.get(what.folder, ()) if not what.node else ():
            node = tree.nodes[f"{what.folder}/{name}"]
            if not node.owner and not what.stays:
                text = "A lock without a session: nothing will release it."
                old = tree.now - node.modified_s >= STALE_S
                yield Problem(
                    f"{what.folder}/{name}", "stale lock", text, (Delete(f"{what.folder}/{name}"),) if old else ()
                )
            given = node.data.decode("utf-8", "backslashreplace")
            if given and not _is_node_of(name, given):
                text = f"This {kind} lock holds the name {given!r}, whose node it is not."
                yield Problem(f"{what.folder}/{name}", "lock name", text)


def _is_node_of(node: str, name: str) -> bool:
    """May a lock of this name be kept in this node?"""
    try:
        own = nodes.mapped(name)
    except UsageError:
        return False
    return node == own or re.fullmatch(re.escape(own) + "~[0-9]+", node) is not None


RULES: Final = (_folders, _known_nodes, _batches, _uuids, _jobs, _access, _locks)

_LISTS = "|".join(JobList)
_STATES = "|".join(state.lower() for state in JobState)
_LIST_ENTRY = re.compile(rf"/batches/[^/]+/states/(?:{_LISTS})/[^/]+")
_STATE_ENTRY = re.compile(rf"/jobs/states/(?:{_STATES})/[0-9]{{2}}-[^/]+")
_ITEM_LOCK = re.compile(r"/batches/[^/]+/lock|/jobs/(?!states/)[^/]+/lock|/access/[^/]+/[^/]+/lock")
_LAYOUT = re.compile(
    "|".join(
        [
            *map(re.escape, nodes.skeleton()),
            _LIST_ENTRY.pattern,
            _STATE_ENTRY.pattern,
            "/batch-uuids/[^/]+",
            r"/batches/bid[0-9]{10}(?:/(?:submission|status|status-report|lock|states))?",
            rf"/batches/bid[0-9]{{10}}/states/(?:{_LISTS})",
            r"/jobs/jid[0-9]{10}(?:/(?:bid|priority|space_needed|status|lock|" + "|".join(JSON_NODES) + "))?",
            r"/access/(?:small|large)/qid[0-9]{10}(?:/(?:token|status|lock))?",
            "/locks/queue/(?:ingest|accessSmall|accessLarge)",
            "/locks/(?:collections|storage|inventory|localid)/[^/]+",
        ]
    )
)
"""Every path that the layout knows."""


# What an operator is shown of values that submitters gave: URLs without passwords and tokens.

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?:[^\s/?#]*@)?[^\s\"'<>]+")
"""In a text."""

_WHOLE: Final = re.compile(r"\s*([a-z][a-z0-9+.-]{1,30}:[/\\]+|(?:https?|ftp):|//)(.*)", re.DOTALL | re.IGNORECASE)
"""A value that is a URL, well-formed or not: what it begins with, and the rest."""

_HOST: Final = re.compile(r"(?:\[[^\]]*\]|[^:/?#]*)(?::[0-9]*)?(?=[/?#]|$)")

_TEXTS: Final = ("message", "why")
"""Keys of what people read, which may begin with a URL."""


def without_secrets(value: Any, *, is_text: bool = False) -> Any:
    """Return the value with each URL in it stripped of user, password and query, where passwords and tokens are."""
    if isinstance(value, str):
        found = None if is_text else _WHOLE.fullmatch(value)
        return _shown_whole(*found.groups()) if found else _in_text(value)
    if isinstance(value, Mapping):
        return {name: without_secrets(one, is_text=name in _TEXTS) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return value


def _shown_whole(begins: str, rest: str) -> str:
    """Passwords may have characters that should have been encoded: where no host can be, it is up to the last ``@``."""
    if _HOST.match(rest) is None or "@" in re.split("[/?#]", rest, maxsplit=1)[0]:
        rest = rest.rpartition("@")[2]
    return _in_text(redact(f"{begins}{rest}"))


def _in_text(text: str) -> str:
    return _URL.sub(lambda found: redact(found[0]), text)


def dump_without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A dump, the URLs in its nodes without passwords and tokens. What needs them cannot be fetched after a restore."""
    return {**data, "nodes": {path: _node(value) for path, value in data["nodes"].items()}}


def _node(value: Any) -> Any:
    if not isinstance(value, str):
        return value if "base64" not in value else _bytes(value)
    try:
        decoded = json.loads(value)
    except ValueError:
        return without_secrets(value, is_text=True)
    if not isinstance(decoded, dict | list):
        return value
    hidden = without_secrets(decoded)
    return value if hidden == decoded else json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))


def _bytes(value: Mapping[str, str]) -> Mapping[str, str]:
    """Return bytes as they are, unless they contain a URL."""
    data = base64.b64decode(value["base64"]).decode("latin-1")
    if _URL.search(data) is None:
        return value
    hidden = without_secrets(data, is_text=True).replace("…", "...").encode("latin-1")
    return {"base64": base64.b64encode(hidden).decode()}
