"""Public names with their signatures and docstrings, as Markdown."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ForwardRef

from scripts.docs.folding import fold

WIDTH = 100
"""Greatest number of characters in a line of code."""

FEW_WORDS = 25
"""Greatest number of words that are not worth folding."""

SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:")


def module(name: str) -> str:
    """Return the entries of a module's ``__all__``: classes first, in the order of ``__all__``."""
    imported = importlib.import_module(name)
    objects = [(n, getattr(imported, n)) for n in imported.__all__]
    ordered = [o for o in objects if inspect.isclass(o[1])] + [o for o in objects if not inspect.isclass(o[1])]
    return "\n\n".join(_with_options(entry(n, each, folded=True)) for n, each in ordered)


def _with_options(text: str) -> str:
    """Return an entry with the options of ``run`` in place of the line that refers to them."""
    from ferryman.operations import RunOptions

    listed = "\n".join(f"- `{name}`: {' '.join(doc.split())}" for name, doc in _attribute_docs(RunOptions).items())
    return text.replace("- `options`: see `RunOptions`.", listed)


def names(module_name: str) -> str:
    """Return a table of a module's names, with the first sentence of each docstring."""
    imported = importlib.import_module(module_name)
    lines = ["| name | what it is |", "|---|---|"]
    for name in imported.__all__:
        first = prose(inspect.getdoc(getattr(imported, name)) or "").split("\n\n")[0]
        lines.append(f"| `{name}` | {_sentence(' '.join(first.split()))} |")
    return "\n".join(lines)


def names_only(module_name: str) -> str:
    """Return a module's names, which another page describes."""
    return ", ".join(f"`{name}`" for name in importlib.import_module(module_name).__all__) + "."


def answers() -> str:
    """Return the entries of what ``run``, ``preview`` and ``retry`` return, and the tree of errors."""
    from ferryman import errors
    from ferryman.engine.preview import Expected, Preview
    from ferryman.engine.summary import FlowSummary, Summary
    from ferryman.operations import Retried
    from ferryman.plan import Handle

    tree = textwrap.dedent((inspect.getdoc(errors) or "").partition("::\n")[2].partition("Every message")[0]).strip(
        "\n"
    )
    pieces = [
        entry("Handle", Handle, call=False, folded=True),
        entry("Summary", Summary, call=False, folded=True),
        entry("FlowSummary", FlowSummary, call=False, folded=True),
        entry("Preview", Preview, call=False, folded=True),
        entry("Expected", Expected, call=False, folded=True),
        entry("Retried", Retried, call=False, folded=True),
    ]
    return "\n\n".join([*pieces, "### Errors\n\nAll in `ferryman.errors`.", f"```text\n{tree}\n```"])


def routers() -> str:
    """Return the router port in full, and the constructors of the shipped routers."""
    from ferryman import routers as module

    shipped = [n for n in module.__all__ if n != "Router"]
    return "\n\n".join(
        [entry("Router", module.Router, folded=True), *(entry(n, getattr(module, n), of=()) for n in shipped)]
    )


def testing() -> str:
    """Return the entries of the conformance suites, the proxy and the in-process runner."""
    from ferryman.testing import destinations, inprocess, logs, proxy, servers, sources

    suites = {
        "ferryman.testing.sources.SourceSuite": sources.SourceSuite,
        "ferryman.testing.logs.LogSuite": logs.LogSuite,
        "ferryman.testing.destinations.DestinationSuite": destinations.DestinationSuite,
        "ferryman.testing.servers.ServerSuite": servers.ServerSuite,
    }
    pieces = [
        entry(name, suite, of=_methods_to_override(suite), call=False, folded=True) for name, suite in suites.items()
    ]
    pieces.append(entry("ferryman.testing.proxy.Proxy", proxy.Proxy, of=("break_next", "close"), folded=True))
    pieces.append(entry("ferryman.testing.proxy.ProxyFault", proxy.ProxyFault))
    pieces.append(entry("ferryman.testing.inprocess.InProcess", inprocess.InProcess, of=()))
    return "\n\n".join(pieces)


def _methods_to_override(suite: type) -> tuple[str, ...]:
    return tuple(n for n, f in vars(suite).items() if inspect.isfunction(f) and not n.startswith(("_", "test_")))


def entry(name: str, thing: Any, of: tuple[str, ...] | None = None, *, call: bool = True, folded: bool = False) -> str:
    """Return the entry of a name: signature, docstring, and for a class its public methods (or those in ``of``).

    ``folded``: below the first paragraph everything is closed until a reader opens it.
    """
    arguments = _arguments(thing) if call else ""
    first, *rest = _paragraphs(prose(inspect.getdoc(thing) or ""))
    members = [member for member in _members(thing, of) if member] if inspect.isclass(thing) else []
    more = [*rest, *members]
    if folded and sum(len(text.split()) for text in more) > FEW_WORDS:
        called = re.findall(rf"^```python\n{thing.__name__}\.(\w+)", "\n\n".join(members), re.MULTILINE)
        more = [fold(f"More: {', '.join(called)}" if called else "More", "\n\n".join(more))]
    pieces = [f"### {name.rpartition('.')[2]}", _code(name + arguments) if arguments else "", first, *more]
    return "\n\n".join(p for p in pieces if p)


def _paragraphs(text: str) -> list[str]:
    """Split Markdown at blank lines outside of code; at least one."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return [
        piece.strip()
        for n, part in enumerate(parts)
        for piece in ([part] if n % 2 else part.split("\n\n"))
        if piece.strip()
    ] or [""]


def _members(thing: type, of: tuple[str, ...] | None) -> Iterator[str]:
    docs = _attribute_docs(thing)
    if issubclass(thing, enum.Enum):
        yield "\n".join(
            f"- `{m.name}` (`{m.value!r}`)" + (f": {docs[m.name]}" if m.name in docs else "") for m in thing
        )
        return
    if docs and of is None:
        yield "\n".join(f"- `{name}`: {text}" for name, text in docs.items())
    for name, member in vars(thing).items():
        if name.startswith("_") or (of is not None and name not in of):
            continue
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        text = inspect.getdoc(function.fget if isinstance(function, property) else function) or ""
        if not text or not (inspect.isfunction(function) or isinstance(function, property)):
            continue
        arguments = "" if isinstance(function, property) else _arguments(function, bound=True)
        yield f"{_code(f'{thing.__name__}.{name}{arguments}')}\n\n{prose(text)}"


def _attribute_docs(thing: type) -> dict[str, str]:
    """Return the strings below a class's attributes, which Python does not keep."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, below in pairwise(tree.body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = prose(inspect.cleandoc(str(below.value.value)))
    return found


def _code(call: str) -> str:
    """Return a call as a block, with one argument a line if it is too long for one line."""
    if len(call) > WIDTH:
        head, _, rest = call.partition("(")
        arguments, _, answer = rest.rpartition(")")
        call = f"{head}(\n" + "".join(f"    {a},\n" for a in _split(arguments)) + f"){answer}"
    return f"```python\n{call}\n```"


def _split(arguments: str) -> list[str]:
    """Split arguments at commas outside brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for character in arguments:
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        if not quote:
            depth += (character in "[({") - (character in "])}")
        if character == "," and not depth and not quote:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def _arguments(thing: Any, *, bound: bool = False) -> str:
    """Return ``(name: str, version: int = 0) -> Handle``; "" if there is nothing to call."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return ""
    try:
        signature = inspect.signature(thing)
    except ValueError:  # an exception without an __init__ of its own
        return ""
    parameters = [p for p in signature.parameters.values() if not (bound and p.name in ("self", "cls"))]
    if inspect.isclass(thing) and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return ""
    pieces: list[str] = []
    before = None
    for p in parameters:
        if before is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            pieces.append("/")
        if p.kind is p.KEYWORD_ONLY and before not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            pieces.append("*")
        pieces.append(_parameter(p))
        before = p.kind
    returns = signature.return_annotation
    no_answer = returns in (signature.empty, "None", None) or inspect.isclass(thing)
    return f"({', '.join(pieces)})" + ("" if no_answer else f" -> {_annotation(returns)}")


def _parameter(p: inspect.Parameter) -> str:
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    text = stars + p.name
    if p.annotation is not p.empty:
        text += f": {_annotation(p.annotation)}"
    if p.default is not p.empty:
        text += f" = {_default(p.default)}" if p.annotation is not p.empty else f"={_default(p.default)}"
    return text


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):  # of a NamedTuple
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def prose(doc: str) -> str:
    """Return a docstring as Markdown: ``code``, lists for Args and Raises, blocks for indented text."""
    out: list[str] = []
    for paragraph in doc.split("\n\n"):
        lines = paragraph.splitlines()
        if not lines:
            continue
        if lines[0].strip() in SECTIONS:
            items = textwrap.dedent("\n".join(lines[1:]))
            out.append(f"{lines[0].strip()}\n\n{_items(items)}")
        elif lines[0].startswith(">>> "):
            if all(line.startswith((">>> ", "... ")) for line in lines):
                out.append("```python\n" + "\n".join(line.removeprefix(">>> ") for line in lines) + "\n```")
            else:  # with what comes of it
                out.append("```pycon\n" + paragraph + "\n```")
        elif all(line.startswith("    ") for line in lines):
            code = textwrap.dedent(paragraph)
            joined = out and out[-1].startswith("```")
            out.append(f"```{'python' if 'import ' in code or 'def ' in code else 'text'}\n{code}\n```")
            if joined:
                out[-2:] = [out[-2].removesuffix("\n```") + "\n\n" + code + "\n```"]
        else:
            out.append(paragraph.replace("``", "`"))
    return "\n\n".join(out)


def _items(text: str) -> str:
    """Return ``name: meaning`` entries, with their continuation lines, as a list."""
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    marked = []
    for item in items:
        name, colon, rest = item.partition(": ")
        marked.append(f"- `{name}`: {rest}" if colon and re.fullmatch(r"[\w, .*]+", name) else f"- {item}")
    return "\n".join(marked).replace("``", "`")


def _sentence(text: str) -> str:
    """Return the first sentence."""
    match = re.match(r".+?[.:](?= |$)", text)
    return (match[0] if match else text).rstrip(":").replace("|", "\\|")
