"""The package's code as syntax trees, parsed once in a process. Tests of the code run in one process: see
``schedule.TOGETHER``."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import ferryman

PACKAGE = Path(ferryman.__file__).parent


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Module -> its syntax tree, in the order of their paths. Nobody may change one."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """All nodes of all modules."""
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree)]
