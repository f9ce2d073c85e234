"""Leaving pandas unloaded until a program needs it.

pyarrow loads pandas, where it is installed, as soon as it makes an array of Python objects: to know what a series is.
That takes longer than a run that finds nothing new, and Ferryman itself uses no pandas.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

_PANDAS: Final = "pandas"
_OWN: Final = "ferryman"
_BETWEEN: Final = ("importlib", "pyarrow", __name__)
"""Packages whose frames lie between the code that wants an array and the import of pandas."""


def defer_pandas() -> None:
    """Have pyarrow do without pandas in this process where Ferryman calls it, until other code needs pandas.

    For processes that Ferryman starts: in a program, pyarrow is the program's.
    """
    if _PANDAS not in sys.modules and not any(isinstance(each, _PandasFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _PandasFinder())


class _PandasFinder(MetaPathFinder):
    """Hides pandas from Ferryman's own calls, and leaves when anything else imports it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _PANDAS:
            return None
        if _importer() == _OWN:
            raise ImportError("pandas is not needed here, and takes long to load", name=name)
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ReportingLoader(spec.loader)
        return spec


def _importer() -> str:
    """Return the package whose code wants pandas, by itself or through pyarrow; "": it is not known."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _BETWEEN and module not in _BETWEEN:
            return module.partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class _ReportingLoader(Loader):
    """Loads pandas, then has pyarrow look for it again."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # its resources are found by it
        self._loader.exec_module(module)
        api = getattr(sys.modules.get("pyarrow.lib"), "_pandas_api", None)
        with contextlib.suppress(ImportError, AttributeError):  # a version of one that the other does not know
            _ = api.pd  # type: ignore[union-attr]
