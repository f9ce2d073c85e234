"""Loading of plans and flows by what an operator types: ``file.py``, ``file.py:name`` or ``package.module:name``.

What a plan file defines (steps, destinations, sources) is pickled to the workers by value, and so are the modules in
its folder: the workers need not have these files. Installed modules are pickled by reference.
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
from ferryman.net.relative_paths import relative_to
from ferryman.plan.calls import pickling_findings
from ferryman.plan.flow import Flow
from ferryman.plan.plan import Plan, as_version

FORMS = "give a Python file that makes a Plan (plan.py), one plan of it (plan.py:name), or package.module:name"

Runnable = Plan | Flow
"""Argument of ``run``, ``status``, ``preview``, ``plan check`` and ``plan show``."""

PlanOrFlow = TypeVar("PlanOrFlow", Plan, Flow)


def load(spec: str) -> Runnable:
    """Load the plan or flow that ``spec`` names. A file that makes one flow means that flow, whatever plans it makes.

    Runs the user's file: what it prints goes to stderr, and what it raises is reported as its own error, with file and
    line. The file's folder is put first on ``sys.path``, and relative paths in the file are relative to it.

    Raises:
        UsageError: no such file or module, an error in it, no Plan in it, or several and none named.
    """
    return _select(*_load_module(spec))


def load_plan(spec: str, *, version: int | None = None) -> Plan:
    """Load the one plan that ``spec`` names, for commands that work on a single plan; otherwise as ``load``.

    Args:
        version: given to the plan in place of its own, see ``as_version``; of a module only if it was not imported yet.

    Raises:
        UsageError: as ``load``, and for a flow of several plans, which the message names.
    """
    with as_version(version):
        module, place, name = _load_module(spec)
    loaded = _select(module, place, name)
    if isinstance(loaded, Plan):
        return loaded
    if len(loaded.plans) == 1:
        return loaded.plans[0]
    names = [_name_in_module(plan, loaded, _find_defined(module, Plan)) for plan in loaded.plans]
    raise UsageError(
        f"{spec} is a flow of {len(names)} plans ({', '.join(names)}): say which one: {_example(place, names)}."
    )


def plan_file(spec: str) -> Path | None:
    """Return the absolute path of the plan file that ``spec`` names; None if it names a module."""
    place, _ = _split(spec)
    return place if isinstance(place, Path) else None


def spec_of(spec: str, flow: Flow, plan: Plan) -> str:
    """Return what an operator types for one plan of the flow that ``spec`` names: ``plan.py:orders``."""
    return f"{spec if spec.endswith('.py') else spec.rpartition(':')[0]}:{flow.label(plan)}"


def _load_module(spec: str) -> tuple[ModuleType, str, str | None]:
    """Run or import the module that ``spec`` names; return it, its place as named, and the name after the colon."""
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
    """Split ``spec`` into (file or module, name of the plan in it)."""
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
    """Run a file as a module. It is compiled each time: cached bytecode may be of an edit in the same second."""
    name = _module_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with (
        relative_to(path.parent),
        _user_errors(path),
        _importing_from(path.parent),
        contextlib.redirect_stdout(sys.stderr),
    ):
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # a plan is a program: running it is what loading means
    return module


def _import(name: str, folder: Path) -> ModuleType:
    with _user_errors(None), _importing_from(folder), contextlib.redirect_stdout(sys.stderr):
        importlib.invalidate_caches()  # a module that was written within the last tick of the file system's clock
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is None or not f"{name}.".startswith(f"{e.name}."):
                raise
            raise UsageError(f"{name}: there is no such module here ({folder}) or in {sys.prefix}: {FORMS}.") from None


def _module_name(stem: str) -> str:
    """Return the name that importing the file would give it, unless another module than a plan file has that name.

    A standard module of that name is imported first, because a later import of it would get the plan otherwise.
    """
    if stem in sys.stdlib_module_names:
        with contextlib.suppress(ImportError):
            importlib.import_module(stem)
    in_use = stem in sys.modules or stem in sys.stdlib_module_names
    if in_use and stem not in cloudpickle.list_registry_pickle_by_value():
        return f"{stem}_plan"
    return stem


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Put the folder first on ``sys.path``, as for a script. It stays there: steps may import when they run."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield


@contextlib.contextmanager
def _user_errors(path: Path | None) -> Iterator[None]:
    """Convert errors of the user's code to a UsageError that names the line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit: `exit()` in a plan file must not end the command with success
        file, line = _error_location(e, path)
        if not file and isinstance(e, UsageError):
            raise
        raise UsageError(f"{file}{f', line {line}' if line else ''}: {_error_text(e)}") from e


def _error_location(error: BaseException, path: Path | None) -> tuple[str, int | None]:
    """Return (file, line) of the innermost frame in the user's code, or of a syntax error."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    if path is None:
        user_frames = [f for f in frames if "importlib" not in f.filename and not _is_ours(f.filename)]
    else:
        user_frames = [f for f in frames if f.filename == str(path) or _is_beside(f.filename, path.parent)]
    if user_frames:
        return user_frames[-1].filename, user_frames[-1].lineno
    return (str(path), None) if path else ("", None)


def _error_text(error: BaseException) -> str:
    if isinstance(error, FerrymanError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error}. Install it into {sys.prefix}, or put it beside the plan file."
    text = ((error.msg if isinstance(error, SyntaxError) else str(error)) or "").removesuffix(".")
    kind = type(error).__name__
    return f"{kind}: {text}. Correct it there; -v shows the traceback." if text else f"{kind}. Correct it there."


def _is_ours(filename: str) -> bool:
    return Path(filename).is_relative_to(Path(__file__).parents[1])


def _is_beside(filename: str, folder: Path) -> bool:
    path = Path(filename)
    return path.is_relative_to(folder) and "site-packages" not in path.parts and not _is_ours(filename)


def pickle_neighbours_by_value(plans: Iterable[Plan]) -> None:
    """Have the modules beside this program pickled by value, like those beside a plan file, for workers elsewhere.

    If a plan uses something in them that cannot be pickled, they are pickled by name, which works if the workers have
    them.
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
    if beside and any(True for plan in plans for _ in pickling_findings(plan.nodes)):
        for module in beside:
            cloudpickle.unregister_pickle_by_value(module)


def _program_folder() -> Path | None:
    """Return the folder of the program's own modules; None for an installed program; without a file the current one."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None:
        return Path.cwd()
    name = str(getattr(getattr(main, "__spec__", None), "name", ""))
    folder = Path(file).absolute().parents[name.count(".")]  # python -m package: the folder that the package is in
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
    return None if any(folder.is_relative_to(each) for each in installed) else folder


def _pickle_by_value(module: ModuleType, folder: Path) -> None:
    """Have this module, and those imported from its folder, pickled by value."""
    cloudpickle.register_pickle_by_value(module)
    for name, neighbour in list(sys.modules.items()):
        if _imported_from(neighbour, name, folder) and name in sys.modules:
            cloudpickle.register_pickle_by_value(neighbour)


def _imported_from(module: object, name: str, folder: Path) -> bool:
    """Return whether a module was imported by its name from this very folder, not from a package installed below it
    (``.venv``)."""
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str) or name.partition(".")[0] == "ferryman":
        return False
    if module.__name__ != name:
        return False
    stem = folder.joinpath(*name.split("."))
    return Path(file) in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")


def _select(module: ModuleType, place: str, name: str | None) -> Runnable:
    """Return the object of this name; without a name the only flow, or if there is no flow the only plan."""
    plans, flows = _find_defined(module, Plan), _find_defined(module, Flow)
    if name is not None:
        return _find_by_name(module, place, name)
    candidates: Mapping[str, Runnable] = flows or plans
    if not candidates:
        raise UsageError(f'{place} makes no Plan: write plan = Plan("name") at its top level, not in a function.')
    if len(candidates) > 1:
        several = f"{len(candidates)} {'flows' if flows else 'plans'} ({', '.join(candidates)})"
        raise UsageError(f"{place} makes {several}: say which one: {_example(place, list(candidates))}.")
    return next(iter(candidates.values()))


def _find_by_name(module: ModuleType, place: str, name: str) -> Runnable:
    """Return the module's object of this name; else the plan of this name in one of its flows."""
    value = vars(module).get(name)
    if isinstance(value, Plan | Flow):
        return value
    plans, flows = _find_defined(module, Plan), _find_defined(module, Flow)
    members = {flow.label(plan): plan for flow in flows.values() for plan in flow.plans}
    if name in members:
        return members[name]
    available = [*plans, *flows, *(label for label, plan in members.items() if plan not in plans.values())]
    kinds = "Plan or Flow" if flows else "Plan"
    names = ", ".join(available) or "none"
    raise UsageError(f"{place} has no {kinds} named {name!r}; it has: {names}. Correct the name after the colon.")


def _find_defined(module: ModuleType, kind: type[PlanOrFlow]) -> dict[str, PlanOrFlow]:
    """Return the plans, or flows, at a module's top level, each under the first of its names."""
    defined: dict[str, PlanOrFlow] = {}
    for key, value in vars(module).items():
        if isinstance(value, kind) and not any(value is known for known in defined.values()):
            defined[key] = value
    return defined


def _name_in_module(plan: Plan, flow: Flow, plans: Mapping[str, Plan]) -> str:
    """Return the name that selects a plan of a flow, after the colon."""
    return next((name for name, each in plans.items() if each is plan), flow.label(plan))


def _example(place: str, names: Sequence[str]) -> str:
    return f"{Path(place).name}:{names[0]}"
