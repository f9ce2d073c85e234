"""The structure of the package: no folders in circles, short functions, few and full modules."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import source_code
from tests.support.source_code import PACKAGE

Graph = Mapping[str, set[str]]

LAZY = {("ferryman.sources", "ferryman.intake.source"), ("ferryman.destinations", "ferryman.intake.destination")}
"""Names that the public face of a lower package loads from a higher one when they are asked for."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Module name -> its syntax tree; a package is named as its ``__init__`` is imported."""
    found = {}
    for path, tree in source_code.trees().items():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Names of ours that a module imports: at its top, in functions, and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imports() -> Graph:
    """Module -> the modules of ours that it imports."""
    graph: dict[str, set[str]] = {}
    for name, tree in modules().items():
        targets = set()
        for each in imported(tree):
            target = each
            while target and target not in modules():
                target = target.rpartition(".")[0]
            if target not in ("", name) and (name, target) not in LAZY:
                targets.add(target)
        graph[name] = targets
    return graph


def packages() -> list[str]:
    """Found without parsing: each process that collects the tests asks for them."""
    folders = {path.parent.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py")}
    return sorted(".".join(folder.parts) for folder in folders)


def children(package: str) -> Graph:
    """The files and folders right in a package -> those of them that they import, each folder as one."""
    graph: dict[str, set[str]] = defaultdict(set)

    def child(name: str) -> str:
        inside = name.startswith(f"{package}.")
        return f"{package}.{name.removeprefix(f'{package}.').partition('.')[0]}" if inside else ""

    for name, targets in imports().items():
        if origin := child(name):
            graph[origin] |= {child(target) for target in targets} - {"", origin}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Groups of nodes that can all reach each other, of two and more."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            if (node := todo.pop()) not in seen:
                seen.add(node)
                todo += graph.get(node, ())
        reach[start] = seen
    found: list[set[str]] = []
    for node in graph:
        group = {other for other in reach[node] if node in reach.get(other, ())}
        if len(group) > 1 and group not in found:
            found.append(group)
    return found


def is_folder(name: str) -> bool:
    return PACKAGE.parent.joinpath(*name.split(".")).is_dir()


@pytest.mark.parametrize("package", packages())
def test_no_folder_is_in_a_circle(package: str) -> None:
    """Neither at run time nor for types; files of one folder may name each other's types."""
    assert [group for group in circles(children(package)) if any(map(is_folder, group))] == []


def test_circles_are_found() -> None:
    """The search for circles sees one of three, and nothing in a line."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function behind its parameters and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_long() -> None:
    """At most 70 lines of code: one that is longer does more than one thing."""
    assert [
        f"{name}.{each.name}: {code_lines(each)} lines"
        for name, tree in modules().items()
        for each in functions(tree)
        if code_lines(each) > 70
    ] == []


def constructors() -> Iterator[tuple[str, int]]:
    """Class -> number of parameters of its constructor; dataclasses are data, and have none here."""
    for name, tree in modules().items():
        for each in ast.walk(tree):
            for function in each.body if isinstance(each, ast.ClassDef) else ():
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    given = function.args
                    yield f"{name}.{each.name}", len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1


OPTIONS_OF_A_PLAN = ("ferryman.sources.", "ferryman.destinations.")
"""Classes that the author of a plan makes, with options by name."""


def test_no_constructor_takes_many_collaborators() -> None:
    """At most seven: values that belong together are one object with a name."""
    assert {name: n for name, n in constructors() if n > 7 and not name.startswith(OPTIONS_OF_A_PLAN)} == {}


def test_no_module_is_long() -> None:
    """At most 900 lines; split by subject, never to fit a number."""
    lines = {name: lines_of(name) for name in modules()}
    assert {name: n for name, n in lines.items() if n > 900} == {}


def lines_of(name: str) -> int:
    path = PACKAGE.parent.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return len(file.read_text("utf-8").splitlines())


def test_modules_are_few_and_full() -> None:
    """A module exists because somebody looks for its subject by that name."""
    assert 200 < len(modules()) <= 380
    assert statistics.median(map(lines_of, modules())) >= 150
    assert sum(map(len, imports().values())) <= 6.92 * len(modules())


KEPT = {
    "ferryman.crash._armed": "crash points that a test has armed",
    "ferryman.destinations.file_index.copies": "copies of indexes, compared with what is there at each use",
    "ferryman.engine.remembered._NOTHING": "stays empty",
    "ferryman.engine.runner.child._own_ends": "pipes of this process, if it is a child",
    "ferryman.engine.runner.fork_server._idle": "a server without children, by process",
    "ferryman.engine.runner.fork_server._locks": "by process",
    "ferryman.engine.runner.fork_server._servers": "by process",
    "ferryman.engine.runner.sessions._before_spark": "a handler of signals, put back at the end",
    "ferryman.engine.runner.sessions._own_sessions": "sessions that are ours, with their users",
    "ferryman.engine.transform.event_loop._loops": "by process; a lost one is replaced",
    "ferryman.intake.service.serve._reaches": "limits of the services that run in this process",
    "ferryman.intake.store.memory._SHARED": "queues in memory, which the process shares by name",
    "ferryman.net.drive_clients._made": "classes",
    "ferryman.proof.faults._clocks": "clocks that a proof has put forward, by process",
    "ferryman.storage.delta._open_logs": "logs, moved on at each use",
    "ferryman.storage.files._durable_folders": "folders whose names are durable",
    "ferryman.storage.objects._opened": "clients of object stores",
    "ferryman.storage.objects._prepared_folders": "folders of copies that were made",
    "ferryman.storage.query.idle_databases": "connections of DuckDB without any content",
}
"""What modules collect while the process lives. None of it says of a server or a file what may have changed."""

COLLECTIONS = {"dict", "set", "list", "defaultdict", "OrderedDict", "deque", "Counter", "WeakKeyDictionary"}


def collections_of(tree: ast.Module) -> Iterator[str]:
    """Names of a module's collections that are empty when it is loaded: somebody puts something into them."""
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        value = node.value
        entries = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", None)
        empty = isinstance(value, ast.Dict | ast.List | ast.Set) and not entries
        made = isinstance(value, ast.Call) and not value.args and ast.unparse(value.func).split(".")[-1] in COLLECTIONS
        if empty or made:
            yield ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def test_what_a_run_found_out_is_not_kept_in_a_module() -> None:
    """Another server may have the address of one that was away, and a file may have become another one."""
    found = {f"{name}.{each}" for name, tree in modules().items() for each in collections_of(tree)}
    assert found == KEPT.keys()


def test_names_that_count_as_used_exist() -> None:
    """The list for the search for dead code (scripts/vulture.toml) has no name that is gone itself."""
    root = PACKAGE.parents[1]
    config = tomllib.loads((root / "scripts" / "vulture.toml").read_text("utf-8"))
    names = [name for name in config["tool"]["vulture"]["ignore_names"] if "*" not in name]
    words = {
        word
        for folder in ("src", "bench", "scripts", "tests")
        for path in (root / folder).rglob("*.py")
        for word in re.findall(r"\w+", path.read_text("utf-8"))
    }
    assert [name for name in names if name not in words] == []


TESTS = Path(__file__).parent
NOT_PRIVATE = {"_replace", "_fields", "_asdict", "_make", "_exit", "_getframe", "_repr_svg_"}
"""Public names that begin with an underscore: of named tuples, ``os``, ``sys`` and notebooks."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NOT_PRIVATE


def is_own(node: ast.expr) -> bool:
    """Whether this is ``self``, ``cls`` or ``super()``."""
    name = node.func if isinstance(node, ast.Call) else node
    return isinstance(name, ast.Name) and name.id in ("self", "cls", "super")


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Find private names of others that a module reads, imports, or patches by a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ferryman":
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in ("setattr", "delattr", "getattr", "hasattr", "patch", "object"):
                texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                yield from (str(text) for text in texts if is_private(str(text).rpartition(".")[2]))


def test_tests_ask_public_questions() -> None:
    """At most 150 uses of private names: a test that looks inside fails when the inside is made better."""
    found = [
        f"{path.relative_to(TESTS)}: {use}"
        for path in sorted(TESTS.rglob("*.py"))
        for use in private_uses(ast.parse(path.read_text("utf-8")))
    ]
    assert len(found) <= 150, "\n".join(found)


def test_private_uses_are_found() -> None:
    """Attributes, imports and names in strings; not those of an object itself, nor public names with an underscore."""
    code = """
from ferryman.plan import _one, Plan
plan._two, self._own, super()._own, row._replace(a=1), sys.__name__
patch.setattr(module, "_three", 1), patch.setattr("ferryman.plan._four", 1), mock.patch("ferryman.plan.open")
"""
    assert sorted(private_uses(ast.parse(code))) == ["_one", "_three", "ferryman.plan._four", "plan._two"]
