"""Audit of a live queue against its layout, with repairs of what is unambiguous; dump and restore.

A queue in use changes while it is read, so a finding counts only if two consecutive readings show it.
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
    ACCESS_SIZES,
    BATCH_UUIDS,
    BATCHES,
    JOB_STATES,
    JOBS,
    LOCKS,
    PAUSE_PATH,
    layout_folders,
    name_of,
    parent_of,
)
from ferryman.intake.states import ACCESS as ACCESS_TABLE
from ferryman.intake.states import BATCH, JOB, JobList, JobState, Transitions, job_list_of
from ferryman.intake.store.base import Check, Conflict, Create, Delete, Op, StoredNode
from ferryman.intake.tree import KINDS, NodeTree
from ferryman.net.urls import redact

FAIL_AFTER_S: Final = 3600.0
"""Age in seconds from which a finding is a failure. Younger nodes may be part of work in progress and only cause a
warning."""


class AuditFinding(NamedTuple):
    """A node that does not match the layout."""

    path: str
    rule: str
    age_s: float
    """Seconds since the node was last changed."""
    level: Literal["WARN", "FAIL"]
    text: str


def audit(tree: NodeTree, *, repair: bool = False) -> list[AuditFinding]:
    """Return all findings, sorted by path. ``repair``: fix the unambiguous ones, each in its own commit, and say so in
    the finding's text."""
    before = find_problems(_read(tree), tree.clock())
    if not before:
        return []
    again = _read(tree)
    found_before = {(problem.path, problem.rule, problem.text) for problem in before}
    findings = []
    for problem in find_problems(again, tree.clock()):
        if (problem.path, problem.rule, problem.text) in found_before:
            findings.append(_finding(tree, problem, again, repair=repair))
    return sorted(findings)


def _read(tree: NodeTree) -> Nodes:
    return {path: node for top in TOP_FOLDERS for path, node in tree.store.walk(top)}


def _finding(tree: NodeTree, problem: Problem, nodes: Nodes, *, repair: bool) -> AuditFinding:
    own_nodes = [nodes.get(path) for path in (problem.path, f"{problem.path}/status")]
    parent = nodes.get(parent_of(problem.path))
    changed = [node.modified_s for node in own_nodes if node] or ([parent.modified_s] if parent else [])
    age = max(0.0, tree.clock() - max(changed)) if changed else 0.0
    text = problem.text
    if repair and problem.repair_ops:
        try:
            tree.commit(list(problem.repair_ops))
            text += " Repaired."
        except Conflict as e:
            text += f" Not repaired: {e}: it changes at this moment. Audit again."
    return AuditFinding(problem.path, problem.rule, age, "FAIL" if age >= FAIL_AFTER_S else "WARN", text)


# A queue as a single JSON value: dump and restore.

FORMAT: Final = 1
"""Format of a dump. A newer one is refused."""

TOP_FOLDERS: Final = (BATCH_UUIDS, BATCHES, JOBS, ACCESS, LOCKS)
NUMBERED_FOLDERS: Final = (BATCHES, JOBS, *(f"{ACCESS}/{size}" for size in ACCESS_SIZES))
"""Folders whose children are numbered; numbers are never reused."""

COMMIT_NODES: Final = 500
COMMIT_BYTES: Final = 256 << 10
"""Maximum bytes in one commit of a restore, far below the 1 MiB that ZooKeeper's servers refuse."""


def dump_tree(tree: NodeTree) -> dict[str, Any]:
    """Return all nodes except ephemeral ones, by path: their data as text, or ``{"base64": …}``."""
    nodes = {path: node for top in TOP_FOLDERS for path, node in tree.store.walk(top) if not node.owner}
    return {
        "format": FORMAT,
        "dumped": tree.now(),
        "numbers": {path: nodes[path].next_number for path in NUMBERED_FOLDERS if path in nodes},
        "nodes": {path: _encode_data(node.data) for path, node in nodes.items()},
    }


def restore_tree(tree: NodeTree, data: Mapping[str, Any]) -> None:
    """Create the nodes of a dump. If it is killed, the queue stays paused, and the restore can be repeated.

    Raises:
        UsageError: this is not a dump, or the queue holds something else; nothing was changed.
    """
    nodes, numbers = _parse_dump(data)
    _refuse_foreign_nodes(tree, nodes)
    sets_pause = PAUSE_PATH not in nodes
    if sets_pause and tree.find(PAUSE_PATH) is None:
        tree.commit([Create(PAUSE_PATH)])
    for ops in _commits(tree, nodes):
        tree.commit(ops)
    for path, number in numbers.items():
        tree.store.skip_numbers(path, number)
    if sets_pause:
        tree.commit([Delete(PAUSE_PATH)])


def _commits(tree: NodeTree, nodes: Mapping[str, bytes]) -> Iterator[list[Op]]:
    """Yield commits that create the missing nodes, parents first, each small enough for a ZooKeeper server."""
    paths = sorted(nodes, key=lambda path: path.split("/"))
    existing = {path for top in TOP_FOLDERS for path, _ in tree.store.walk(top)}
    ops: list[Op] = []
    size = 0
    for path in paths:
        if path in existing:
            continue
        if ops and (len(ops) >= COMMIT_NODES or size + len(nodes[path]) > COMMIT_BYTES):
            yield ops
            ops, size = [], 0
        ops.append(Create(path, nodes[path]))
        size += len(nodes[path])
    if ops:
        yield ops


def _refuse_foreign_nodes(tree: NodeTree, nodes: Mapping[str, bytes]) -> None:
    """Refuse a queue that contains nodes which a restore of this dump cannot have created."""
    expected = {*layout_folders(), PAUSE_PATH}
    for top in TOP_FOLDERS:
        for path, node in tree.store.walk(top):
            if path not in expected and nodes.get(path) != node.data:
                raise UsageError(
                    f"{tree.store.url}: the queue is not empty: {path} is there. Nothing was changed. Restore into a "
                    "new one: another file, or another chroot."
                )


def _parse_dump(data: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the nodes of a dump, and the next number of each numbered folder.

    Raises:
        UsageError: it is not one.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise UsageError("this is not a queue dump that this Ferryman reads: `ferryman intake dump` makes one.")
    listed, numbers = data.get("nodes"), data.get("numbers")
    if not isinstance(listed, Mapping) or not isinstance(numbers, Mapping):
        raise UsageError("this dump is damaged: it has no nodes, or no numbers. Use another.")
    nodes = {str(path): _decode_data(str(path), value) for path, value in listed.items()}
    for path in nodes:
        if not path.startswith(tuple(f"{top}/" for top in TOP_FOLDERS)) and path not in TOP_FOLDERS:
            raise UsageError(f"this dump is damaged: {path} is not a queue node. Use another.")
    if not all(path in NUMBERED_FOLDERS and isinstance(number, int) for path, number in numbers.items()):
        raise UsageError("this dump is damaged: its numbers are not integers. Use another.")
    return nodes, {str(path): int(number) for path, number in numbers.items()}


def _encode_data(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _decode_data(path: str, value: object) -> bytes:
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


# Rules of the layout, each a function from all nodes to the problems it finds.

STALE_S: Final = 3600.0
"""Age in seconds from which a repair removes a lock that should live with a session but has none."""

Nodes = Mapping[str, StoredNode]


@dataclass(frozen=True)
class Problem:
    """A node that violates a rule, and the operations that repair it."""

    path: str
    rule: str
    text: str
    repair_ops: tuple[Op, ...] = ()
    """Operations that repair it; empty if an operator has to decide."""


def find_problems(nodes: Nodes, now: float) -> list[Problem]:
    """Check nodes against all rules of the layout."""
    children: dict[str, list[str]] = defaultdict(list)
    for path in nodes:
        children[parent_of(path)].append(name_of(path))
    tree = _LoadedTree(nodes, children, now)
    return [problem for rule in RULES for problem in rule(tree)]


@dataclass(frozen=True)
class _LoadedTree:
    nodes: Nodes
    children: Mapping[str, list[str]]
    now: float

    def json(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object at a path; None if there is none, or it cannot be decoded."""
        try:
            return nodes.decode_node(path, self.nodes[path].data)
        except (KeyError, NodeInvalid):
            return None

    def fault_of(self, path: str, read: Callable[[str, bytes], object]) -> str:
        """Return the fault of a required node; "" if it is fine."""
        if path not in self.nodes:
            return "It is not there."
        try:
            read(path, self.nodes[path].data)
        except NodeInvalid as e:
            return f"It {e.what}."
        return ""


def _check_folders(tree: _LoadedTree) -> Iterator[Problem]:
    """Find missing folders of the layout."""
    for path in nodes.layout_folders():
        if path not in tree.nodes:
            yield Problem(path, "folder", "A folder of the layout is not there.", (Create(path),))


def _check_known_nodes(tree: _LoadedTree) -> Iterator[Problem]:
    """Find nodes that are not part of the layout."""
    for path in tree.nodes:
        if not _LAYOUT.fullmatch(path):
            yield Problem(path, "unknown node", "The layout has no such node. Remove it if nothing uses it.")


def _check_batches(tree: _LoadedTree) -> Iterator[Problem]:
    """Find batches without a submission or a status, and batches that their batchID does not lead to."""
    for name in tree.children.get(BATCHES, ()):
        path = nodes.batch_path(name)
        yield from _check_status(tree, path, BATCH)
        if why := tree.fault_of(f"{path}/submission", nodes.decode_node):
            yield Problem(f"{path}/submission", "batch submission", why)
            continue
        uuid = nodes.submission_uuid(tree.json(f"{path}/submission") or {})
        if not uuid:
            continue
        try:
            uuid_path = f"{BATCH_UUIDS}/{nodes.node_name(uuid)}"
        except UsageError:
            yield Problem(f"{path}/submission", "batch uuid", f"Its batchID {uuid!r} cannot be a node's name.")
            continue
        if uuid_path not in tree.nodes:
            text = f"The batchID of {name} does not lead to it: this node is not there."
            yield Problem(uuid_path, "batch uuid", text, (Check(path), Create(uuid_path, name.encode())))
        elif tree.nodes[uuid_path].data != name.encode():
            other = tree.nodes[uuid_path].data.decode("utf-8", "backslashreplace")
            yield Problem(uuid_path, "batch uuid", f"{name} has this batchID, but it leads to {other!r}.")


def _check_uuids(tree: _LoadedTree) -> Iterator[Problem]:
    """Find batchIDs that lead to no batch."""
    for name in tree.children.get(BATCH_UUIDS, ()):
        path = f"{BATCH_UUIDS}/{name}"
        batch = tree.nodes[path].data.decode("utf-8", "backslashreplace")
        if nodes.batch_path(batch) not in tree.nodes:
            yield Problem(path, "uuid batch", f"It leads to batch {batch!r}, which is not there.", (Delete(path),))


def _check_jobs(tree: _LoadedTree) -> Iterator[Problem]:
    """Find jobs with missing nodes, and jobs whose entries in lists do not match their status."""
    listed: dict[str, list[str]] = defaultdict(list)
    for path in tree.nodes:
        if _LIST_ENTRY.fullmatch(path):
            listed[name_of(path)].append(path)
        elif _STATE_ENTRY.fullmatch(path):
            listed[nodes.job_of_entry(name_of(path))].append(path)
    for job in tree.children.get(JOBS, ()):
        if job != "states":
            yield from _check_job(tree, job, listed.pop(job, []))
    for job, paths in listed.items():
        for path in paths:
            text = f"It lists {job}, which is not there."
            yield Problem(path, "list without job", text, (Delete(path),))


def _check_job(tree: _LoadedTree, job: str, entries_of_job: list[str]) -> Iterator[Problem]:
    path = nodes.job_path(job)
    problems = list(_check_status(tree, path, JOB))
    for name, read in (
        ("bid", nodes.decode_text),
        ("priority", nodes.decode_integer),
        ("space_needed", nodes.decode_integer),
    ):
        if why := tree.fault_of(f"{path}/{name}", read):
            advice = f" {_advice(path)}" if name == "priority" else ""
            problems.append(Problem(f"{path}/{name}", f"job {name}", f"{why}{advice}"))
    for name in JSON_NODES:
        if f"{path}/{name}" in tree.nodes and (why := tree.fault_of(f"{path}/{name}", nodes.decode_node)):
            problems.append(Problem(f"{path}/{name}", f"job {name}", why))
    yield from problems
    if any(problem.path.endswith(("/status", "/bid", "/priority")) for problem in problems):
        return  # its place is unknown
    state = JobState((tree.json(f"{path}/status") or {})["status"])
    batch = tree.nodes[f"{path}/bid"].data.decode()
    priority = nodes.decode_integer(path, tree.nodes[f"{path}/priority"].data)
    unmoved = Check(f"{path}/status", tree.nodes[f"{path}/status"].version)
    yield from _check_entries(
        path,
        "job state",
        nodes.state_path(state, nodes.state_entry(priority, job)),
        entries_of_job,
        JOB_STATES,
        unmoved,
    )
    if nodes.batch_path(batch) not in tree.nodes:
        yield Problem(f"{path}/bid", "job batch", f"Its batch {batch!r} is not there.")
        return
    place = nodes.batch_path(batch, "states", job_list_of(state), job)
    folders = [folder for folder in (parent_of(parent_of(place)), parent_of(place)) if folder not in tree.nodes]
    yield from _check_entries(path, "job batch list", place, entries_of_job, BATCHES, unmoved, folders)


def _check_entries(
    path: str, rule: str, place: str, all_entries: list[str], top: str, unmoved: Op, folders: list[str] | None = None
) -> Iterator[Problem]:
    """Check that ``place`` is the job's only entry below ``top``. A repair is valid only while the job has not
    moved."""
    entries = [one for one in all_entries if one.startswith(f"{top}/")]
    if entries == [place]:
        return
    wrong = [one for one in entries if one != place]
    repair_ops: list[Op] = [unmoved, *(Delete(one) for one in wrong)]
    if place not in entries:
        repair_ops += [*(Create(folder) for folder in folders or []), Create(place)]
    where = ", ".join(sorted(entries)) or "nowhere"
    yield Problem(path, rule, f"It is listed in {where}; its place is {place}.", tuple(repair_ops))


def _check_access(tree: _LoadedTree) -> Iterator[Problem]:
    """Find access requests without a token or a status."""
    for size in ACCESS_SIZES:
        for name in tree.children.get(f"{ACCESS}/{size}", ()):
            path = nodes.access_path(size, name)
            yield from _check_status(tree, path, ACCESS_TABLE)
            if why := tree.fault_of(f"{path}/token", nodes.decode_node):
                yield Problem(f"{path}/token", "access token", why)


def _check_status(tree: _LoadedTree, path: str, table: Transitions[Any]) -> Iterator[Problem]:
    status_path, advice = f"{path}/status", _advice(path)
    if why := tree.fault_of(status_path, nodes.decode_node):
        yield Problem(status_path, "status", f"{why} {advice}")
        return
    named = (tree.json(status_path) or {}).get("status")
    if named not in [state.value for state in table.states]:
        yield Problem(status_path, "status", f"It does not name a state, but {named!r}. {advice}")


def _advice(path: str) -> str:
    """Return the commands for an item that is damaged; only an operator knows its state."""
    id = path.removeprefix(f"{ACCESS}/") if path.startswith(f"{ACCESS}/") else name_of(path)
    return f"`ferryman intake fail {id}` or `ferryman intake delete {id}` rewrites it, as Failed or Deleted."


def _check_locks(tree: _LoadedTree) -> Iterator[Problem]:
    """Find locks that outlived their session, and locks in a node that does not belong to their name."""
    for path, node in tree.nodes.items():
        if _ITEM_LOCK.fullmatch(path) and not node.owner:
            is_stale = tree.now - node.modified_s >= STALE_S
            text = "A lock without a session: nothing will release it."
            yield Problem(path, "stale lock", text, (Delete(path),) if is_stale else ())
    for kind, lock_kind in KINDS.items():
        for name in tree.children.get(lock_kind.folder, ()) if not lock_kind.node else ():
            node = tree.nodes[f"{lock_kind.folder}/{name}"]
            if not node.owner and not lock_kind.is_persistent:
                text = "A lock without a session: nothing will release it."
                is_stale = tree.now - node.modified_s >= STALE_S
                yield Problem(
                    f"{lock_kind.folder}/{name}",
                    "stale lock",
                    text,
                    (Delete(f"{lock_kind.folder}/{name}"),) if is_stale else (),
                )
            held_name = node.data.decode("utf-8", "backslashreplace")
            if held_name and not _may_hold(name, held_name):
                text = f"This {kind} lock holds the name {held_name!r}, whose node it is not."
                yield Problem(f"{lock_kind.folder}/{name}", "lock name", text)


def _may_hold(node: str, name: str) -> bool:
    """Return whether this node may be the lock of this name."""
    try:
        plain_name = nodes.node_name(name)
    except UsageError:
        return False
    return node == plain_name or re.fullmatch(re.escape(plain_name) + "~[0-9]+", node) is not None


RULES: Final = (
    _check_folders,
    _check_known_nodes,
    _check_batches,
    _check_uuids,
    _check_jobs,
    _check_access,
    _check_locks,
)

_LISTS = "|".join(JobList)
_STATES = "|".join(state.lower() for state in JobState)
_LIST_ENTRY = re.compile(rf"/batches/[^/]+/states/(?:{_LISTS})/[^/]+")
_STATE_ENTRY = re.compile(rf"/jobs/states/(?:{_STATES})/[0-9]{{2}}-[^/]+")
_ITEM_LOCK = re.compile(r"/batches/[^/]+/lock|/jobs/(?!states/)[^/]+/lock|/access/[^/]+/[^/]+/lock")
_LAYOUT = re.compile(
    "|".join(
        [
            *map(re.escape, nodes.layout_folders()),
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
"""Matches every path of the layout."""


# Values from submitters, as shown to operators: URLs without passwords and tokens.

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?:[^\s/?#]*@)?[^\s\"'<>]+")
"""Pattern of a URL within a text."""

_URL_VALUE: Final = re.compile(r"\s*([a-z][a-z0-9+.-]{1,30}:[/\\]+|(?:https?|ftp):|//)(.*)", re.DOTALL | re.IGNORECASE)
"""Matches a value that is a URL as a whole, well-formed or not; groups: its beginning, and the rest."""

_HOST: Final = re.compile(r"(?:\[[^\]]*\]|[^:/?#]*)(?::[0-9]*)?(?=[/?#]|$)")

_TEXT_KEYS: Final = ("message", "why")
"""Keys of texts for people, in which a URL may be followed by other words."""


def without_secrets(value: Any, *, is_text: bool = False) -> Any:
    """Return the value with user, password and query removed from every URL in it, since these may contain secrets."""
    if isinstance(value, str):
        match = None if is_text else _URL_VALUE.fullmatch(value)
        return _strip_url(*match.groups()) if match else _strip_urls(value)
    if isinstance(value, Mapping):
        return {name: without_secrets(one, is_text=name in _TEXT_KEYS) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return value


def _strip_url(begins: str, rest: str) -> str:
    """Remove secrets from a value that is a URL. If it has no valid host, everything up to the last ``@`` may be the
    password."""
    if _HOST.match(rest) is None or "@" in re.split("[/?#]", rest, maxsplit=1)[0]:
        rest = rest.rpartition("@")[2]
    return _strip_urls(redact(f"{begins}{rest}"))


def _strip_urls(text: str) -> str:
    return _URL.sub(lambda found: redact(found[0]), text)


def dump_without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dump whose URLs have no passwords and tokens. Files behind such URLs cannot be fetched after a
    restore."""
    return {**data, "nodes": {path: _node_without_secrets(value) for path, value in data["nodes"].items()}}


def _node_without_secrets(value: Any) -> Any:
    if not isinstance(value, str):
        return value if "base64" not in value else _bytes_without_secrets(value)
    try:
        content = json.loads(value)
    except ValueError:
        return without_secrets(value, is_text=True)
    if not isinstance(content, dict | list):
        return value
    stripped = without_secrets(content)
    return value if stripped == content else json.dumps(stripped, ensure_ascii=False, separators=(",", ":"))


def _bytes_without_secrets(value: Mapping[str, str]) -> Mapping[str, str]:
    """Return bytes as in a dump, with secrets removed from any URLs in them."""
    data = base64.b64decode(value["base64"]).decode("latin-1")
    if _URL.search(data) is None:
        return value
    stripped = without_secrets(data, is_text=True).replace("…", "...").encode("latin-1")
    return {"base64": base64.b64encode(stripped).decode()}
