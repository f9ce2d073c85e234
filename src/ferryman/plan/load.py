"""From what an operator types to a plan or a flow: ``file.py``, ``file.py:name`` or ``package.module:name``.

What a plan file defines (steps, destinations, sources) is pickled to the workers by value, and so are the modules that
lie beside it: the workers need not have these files. Modules that are installed are pickled by reference.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import cloudpickle

from ferryman.errors import FerrymanError, UsageError
from ferryman.net.places import relative_to
from ferryman.plan.calls import cannot_be_pickled
from ferryman.plan.flow import Flow
from ferryman.plan.plan import Plan

FORMS = "give a Python file that makes a Plan (plan.py), one plan of it (plan.py:name), or package.module:name"

Runnable = Plan | Flow
"""Argument of ``run``, ``status``, ``preview``, ``plan check`` and ``plan show``."""

Made = TypeVar("Made", Plan, Flow)


def load(spec: str) -> Runnable:
    """The plan or the flow that ``spec`` names. A file that makes one flow is that flow, whatever plans it makes.

    Runs the user's file: what it prints goes to stderr, and what it raises is reported as its own error, with file and
    line. The file's folder is put first on ``sys.path``, and what it says of relative paths is meant from there.

    Raises:
        UsageError: no such file or module, an error in it, no Plan in it, or several and none named.
    """
    return _pick(*_module(spec))


def load_plan(spec: str) -> Plan:
    """The one plan that ``spec`` names, for what cannot be asked of several; otherwise as ``load``.

    Raises:
        UsageError: also of a flow of several plans; names them.
    """
    module, place, name = _module(spec)
    found = _pick(module, place, name)
    if isinstance(found, Plan):
        return found
    if len(found.plans) == 1:
        return found.plans[0]
    names = [_name_of(plan, found, _made(module, Plan)) for plan in found.plans]
    raise UsageError(
        f"{spec} is a flow of {len(names)} plans ({', '.join(names)}): say which one: {_example(place, names)}."
    )


def plan_file(spec: str) -> Path | None:
    """The plan file that ``spec`` names, absolute; None where it names a module."""
    place, _ = _split(spec)
    return place if isinstance(place, Path) else None


def spec_of(spec: str, flow: Flow, plan: Plan) -> str:
    """How an operator names one plan of the flow that ``spec`` names: ``plan.py:orders``."""
    return f"{spec if spec.endswith('.py') else spec.rpartition(':')[0]}:{flow.label(plan)}"


def _module(spec: str) -> tuple[ModuleType, str, str | None]:
    """The module that ``spec`` names, run or imported; how it was named; the name after the colon."""
    place, name = _split(spec)
    if isinstance(place, Path):
        folder = place.parent
        module = _run_file(place)
    else:
        folder = Path.cwd()
        module = _import(place, folder)
    _pickle_by_value(module, folder)
    return module, str(place), name


def _split(spec: str) -> tuple[Path | str, str | None]:
    """(file or module, name of the plan in it)."""
    head, colon, name = spec.rpartition(":")
    if spec.endswith(".py"):
        head, colon, name = spec, "", ""
    if head.endswith(".py"):
        path = Path(head).absolute()
        if not path.is_file():
            raise UsageError(f"{head}: there is no such file: {FORMS}; `ferryman init DIR` writes one to start from.")
        return path, name or None
    if colon and head and name:
        return head, name
    if spec and Path(spec).is_dir():
        raise UsageError(f"{spec} is a folder: {FORMS}.")
    raise UsageError(f"{spec!r} names no plan: {FORMS}.")


def _run_file(path: Path) -> ModuleType:
    """The file as a module. Compiled each time: a cached one may be of the file's last edit in the same second."""
    name = _module_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with (
        relative_to(path.parent),
        _their_errors(path),
        _importing_from(path.parent),
        contextlib.redirect_stdout(sys.stderr),
    ):
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # a plan is a program: running it is what loading means
    return module


def _import(name: str, folder: Path) -> ModuleType:
    with _their_errors(None), _importing_from(folder), contextlib.redirect_stdout(sys.stderr):
        importlib.invalidate_caches()  # a module that was written within the last tick of the file system's clock
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is None or not f"{name}.".startswith(f"{e.name}."):
                raise
            raise UsageError(f"{name}: there is no such module here ({folder}) or in {sys.prefix}: {FORMS}.") from None


def _module_name(stem: str) -> str:
    """The file's name, as if it was imported, unless a module has it that is not a plan file loaded earlier.

    Python's own module of that name is imported first, or whoever wants it later would get the plan.
    """
    if stem in sys.stdlib_module_names:
        with contextlib.suppress(ImportError):
            importlib.import_module(stem)
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    if taken and stem not in cloudpickle.list_registry_pickle_by_value():
        return f"{stem}_plan"
    return stem


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """The folder first on ``sys.path``, as for a script. It stays there: steps may import when they run."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield


@contextlib.contextmanager
def _their_errors(path: Path | None) -> Iterator[None]:
    """Convert errors of the user's code to a UsageError that names the line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit: `exit()` in a plan file must not end us as if all was well
        file, line = _place(e, path)
        if not file and isinstance(e, UsageError):
            raise
        raise UsageError(f"{file}{f', line {line}' if line else ''}: {_told(e)}") from e


def _place(error: BaseException, path: Path | None) -> tuple[str, int | None]:
    """(file, line) of the deepest of the user's frames, or of the line that is not Python."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    if path is None:
        theirs = [f for f in frames if "importlib" not in f.filename and not _is_ours(f.filename)]
    else:
        theirs = [f for f in frames if f.filename == str(path) or _beside(f.filename, path.parent)]
    if theirs:
        return theirs[-1].filename, theirs[-1].lineno
    return (str(path), None) if path else ("", None)


def _told(error: BaseException) -> str:
    if isinstance(error, FerrymanError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error}. Install it into {sys.prefix}, or put it beside the plan file."
    what = ((error.msg if isinstance(error, SyntaxError) else str(error)) or "").removesuffix(".")
    kind = type(error).__name__
    return f"{kind}: {what}. Correct it there; -v shows the traceback." if what else f"{kind}. Correct it there."


def _is_ours(filename: str) -> bool:
    return Path(filename).is_relative_to(Path(__file__).parents[1])


def _beside(filename: str, folder: Path) -> bool:
    path = Path(filename)
    return path.is_relative_to(folder) and "site-packages" not in path.parts and not _is_ours(filename)


def send_neighbours(plans: Iterable[Plan]) -> None:
    """Workers on other machines get the modules beside this program by value, as those beside a plan file.

    Not if what the plans use of them cannot be pickled: where the workers have them, by name is enough.
    """
    folder = _program_folder()
    known = cloudpickle.list_registry_pickle_by_value()
    beside = [
        module
        for name, module in list(sys.modules.items())
        if folder is not None and name not in known and name != "__main__" and _imported_from(module, name, folder)
    ]
    for module in beside:
        cloudpickle.register_pickle_by_value(module)
    if beside and any(True for plan in plans for _ in cannot_be_pickled(plan.nodes)):
        for module in beside:
            cloudpickle.unregister_pickle_by_value(module)


def _program_folder() -> Path | None:
    """Where the program's own modules are; None: it is an installed one. Without a file it is the current folder."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None:
        return Path.cwd()
    name = str(getattr(getattr(main, "__spec__", None), "name", ""))
    folder = Path(file).absolute().parents[name.count(".")]  # python -m package: the folder that the package is in
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
    return None if any(folder.is_relative_to(each) for each in installed) else folder


def _pickle_by_value(module: ModuleType, folder: Path) -> None:
    """Workers get this module, and those imported from its folder, by value."""
    cloudpickle.register_pickle_by_value(module)
    for name, neighbour in list(sys.modules.items()):
        if _imported_from(neighbour, name, folder) and name in sys.modules:
            cloudpickle.register_pickle_by_value(neighbour)


def _imported_from(module: object, name: str, folder: Path) -> bool:
    """Was it found by its name right in this folder? An installed package below it (``.venv``) was not."""
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str) or name.partition(".")[0] == "ferryman":
        return False
    if module.__name__ != name:
        return False
    stem = folder.joinpath(*name.split("."))
    return Path(file) in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")


def _pick(module: ModuleType, place: str, name: str | None) -> Runnable:
    """The named one; else the one flow, or where there is none the one plan."""
    plans, flows = _made(module, Plan), _made(module, Flow)
    if name is not None:
        return _named(module, place, name)
    found: Mapping[str, Runnable] = flows or plans
    if not found:
        raise UsageError(f'{place} makes no Plan: write plan = Plan("name") at its top level, not in a function.')
    if len(found) > 1:
        what = f"{len(found)} {'flows' if flows else 'plans'} ({', '.join(found)})"
        raise UsageError(f"{place} makes {what}: say which one: {_example(place, list(found))}.")
    return next(iter(found.values()))


def _named(module: ModuleType, place: str, name: str) -> Runnable:
    """Return the module's object of this name; else the plan of this name in one of its flows."""
    value = vars(module).get(name)
    if isinstance(value, Plan | Flow):
        return value
    plans, flows = _made(module, Plan), _made(module, Flow)
    members = {flow.label(plan): plan for flow in flows.values() for plan in flow.plans}
    if name in members:
        return members[name]
    there = [*plans, *flows, *(label for label, plan in members.items() if plan not in plans.values())]
    kinds = "Plan or Flow" if flows else "Plan"
    has = ", ".join(there) or "none"
    raise UsageError(f"{place} has no {kinds} named {name!r}; it has: {has}. Correct the name after the colon.")


def _made(module: ModuleType, kind: type[Made]) -> dict[str, Made]:
    """The plans, or flows, at a module's top level, each by the first of its names."""
    found: dict[str, Made] = {}
    for key, value in vars(module).items():
        if isinstance(value, kind) and not any(value is known for known in found.values()):
            found[key] = value
    return found


def _name_of(plan: Plan, flow: Flow, made: Mapping[str, Plan]) -> str:
    """How a plan of a flow is named behind the colon."""
    return next((name for name, each in made.items() if each is plan), flow.label(plan))


def _example(place: str, names: Sequence[str]) -> str:
    return f"{Path(place).name}:{names[0]}"
