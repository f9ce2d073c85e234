"""Move modules, merge them and rewrite every import of them, without an edit inside a function.

usage: moves.py ROOT LAYOUT.json
LAYOUT: {"module": {"ferryman.a.b": "ferryman.c"}, "split": {"ferryman.a.b": {"ferryman.c": ["name", ...]}},
         "rename": {"ferryman.a.b": {"_old": "_new"}}, "package": ["ferryman.x.y"] (new modules that stay packages)}
A module that LAYOUT does not name stays.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
LAYOUT = json.loads(Path(sys.argv[2]).read_text())
SRC = ROOT / "src"
problems: list[str] = []


def dotted(path: Path) -> str:
    name = path.relative_to(SRC).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


class Module:
    def __init__(self, path: Path, name: str | None) -> None:
        self.path, self.name = path, name
        self.text = path.read_text("utf-8")
        self.tree = ast.parse(self.text)
        self.starts = [0]
        for line in self.text.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.defs: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            for each in defined(node):
                self.defs[each] = node
        # A package may export a function that is called as its module.
        self.exports = set(self.defs)
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ferryman"):
                for a in node.names:
                    if not (node.module == name and a.asname is None):
                        self.exports.add(a.asname or a.name)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset)

    def lines(self, node: ast.AST) -> tuple[int, int]:
        """Whole lines of a statement, with its decorators."""
        first = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
        return self.starts[first - 1], self.starts[node.end_lineno]


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


MODULES = {dotted(p): Module(p, dotted(p)) for p in sorted((SRC / "ferryman").rglob("*.py"))}
SHORT = {name.rpartition('.')[2] for name in MODULES if name in LAYOUT['module']}
NEW = {name: LAYOUT["module"].get(name, name) for name in MODULES}
SPLIT = {old: {s: new for new, names in by.items() for s in names} for old, by in LAYOUT.get("split", {}).items()}
RENAME = LAYOUT.get("rename", {})
MERGED = defaultdict(list)
for old, new in NEW.items():
    MERGED[new].append(old)


def home(module: str, symbol: str) -> str:
    return SPLIT.get(module, {}).get(symbol, NEW[module])


def renamed(module: str, symbol: str) -> str:
    return RENAME.get(module, {}).get(symbol, symbol)


def where(module: str, symbol: str, seen: tuple[str, ...] = ()) -> tuple[str, str]:
    """The module that a symbol lives in now (follows re-exports between modules that are merged), and its new name."""
    m = MODULES[module]
    if symbol in m.defs:
        return home(module, symbol), renamed(module, symbol)
    return NEW[module], symbol


class Scopes(ast.NodeVisitor):
    """Calls back for each Name in load context that is global, with the stack of enclosing function scopes' bindings."""

    def __init__(self) -> None:
        self.stack: list[set[str]] = []
        self.found: list[tuple[ast.AST, frozenset[str]]] = []
        self.parents: dict[int, ast.AST] = {}

    def locals_of(self, node: ast.AST) -> set[str]:
        names: set[str] = set()
        declared: set[str] = set()
        args = node.args if hasattr(node, "args") and isinstance(getattr(node, "args", None), ast.arguments) else None
        if args:
            for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
                if a:
                    names.add(a.arg)
        body = node.body if isinstance(node.body, list) else [node.body]

        def walk(n: ast.AST) -> None:
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(n.name)
                return
            if isinstance(n, ast.Lambda):
                return
            if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                for each in ast.walk(n):
                    if isinstance(each, ast.NamedExpr):
                        names.add(each.target.id)
                return
            if isinstance(n, ast.Global):
                declared.update(n.names)
            if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                names.add(n.id)
            if isinstance(n, (ast.Import, ast.ImportFrom)):
                for a in n.names:
                    names.add((a.asname or a.name).split(".")[0])
            if isinstance(n, ast.ExceptHandler) and n.name:
                names.add(n.name)
            if isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name:
                names.add(n.name)
            if isinstance(n, ast.MatchMapping) and n.rest:
                names.add(n.rest)
            for c in ast.iter_child_nodes(n):
                walk(c)

        for b in body:
            walk(b)
        return names - declared

    def visit_function(self, node: ast.AST) -> None:
        for d in getattr(node, "decorator_list", []):
            self.visit(d)
        args = node.args
        for d in [*args.defaults, *[d for d in args.kw_defaults if d]]:
            self.visit(d)
        for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if a and a.annotation:
                self.visit(a.annotation)
        if getattr(node, "returns", None):
            self.visit(node.returns)
        self.stack.append(self.locals_of(node))
        for b in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(b)
        self.stack.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_function

    def visit_comp(self, node: ast.AST) -> None:
        names = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.visit(node.generators[0].iter)
        self.stack.append(names)
        for i, g in enumerate(node.generators):
            if i:
                self.visit(g.iter)
            for c in g.ifs:
                self.visit(c)
        for f in ("elt", "key", "value"):
            if hasattr(node, f):
                self.visit(getattr(node, f))
        self.stack.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comp

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.parents[id(node.value)] = node
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.in_class = getattr(self, "in_class", False), True
        self.generic_visit(node)
        self.in_class = outer

    def visit_Name(self, node: ast.Name) -> None:
        if getattr(self, "in_class", False) and not isinstance(node.ctx, ast.Load) and not self.stack:
            return
        self.found.append((node, tuple(frozenset(s) for s in self.stack)))


def import_stmt(module: str, name: str, alias: str | None, indent: str = "") -> str:
    return f"{indent}from {module} import {name}" + (f" as {alias}" if alias else "")


class Rewriter:
    """All edits of one file."""

    def __init__(self, m: Module, group: str | None) -> None:
        self.m, self.group = m, group
        self.edits: list[tuple[int, int, str]] = []
        self.top: list[str] = []
        self.typing: list[str] = []
        self.all: list[str] = []
        # local name -> ("module", old module) or ("symbol", module, name)
        self.bound: dict[str, tuple[str, ...]] = {}
        self.rename_names: dict[str, str] = {}
        scopes = Scopes()
        scopes.visit(m.tree)
        self.scopes = scopes
        self.uses: dict[str, list[tuple[ast.Name, tuple]]] = defaultdict(list)
        for node, stack in scopes.found:
            self.uses[node.id].append((node, stack))
        self.all_names = {n.id for n, _ in scopes.found} | set(m.defs) | {x for s in scopes.found for f in s[1] for x in f}

    def run(self) -> None:
        m = self.m
        if m.name is not None:
            for s in m.defs:
                if renamed(m.name, s) != s:
                    self.rename_symbol(s, renamed(m.name, s), local_ok=False)
        for node in ast.walk(m.tree):
            for c in ast.iter_child_nodes(node):
                c.parent = node  # type: ignore[attr-defined]
        for node in ast.walk(m.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.handle(node)

    def level(self, node: ast.AST) -> str:
        p = node.parent
        if isinstance(p, ast.Module):
            return "top"
        if isinstance(p, ast.If) and ast.unparse(p.test) == "TYPE_CHECKING" and isinstance(p.parent, ast.Module):
            return "typing"
        return "lazy"

    def handle(self, node: ast.Import | ast.ImportFrom) -> None:
        level = self.level(node)
        start, end = self.m.lines(node)
        raw = self.m.text.encode()[start:end].decode()
        indent = raw[: len(raw) - len(raw.lstrip())]
        comment = re.search(r"  (#.*)$", raw.rstrip()) if "\n" not in raw.rstrip() else None
        out: list[str] = []
        if isinstance(node, ast.Import):
            for a in node.names:
                name = a.name
                if name in NEW and NEW[name] != name:
                    problems.append(f"{self.m.path}: import {name}")
                out.append(f"{indent}import {name}" + (f" as {a.asname}" if a.asname else ""))
        elif node.level or not (node.module or "").startswith("ferryman"):
            mod = "." * node.level + (node.module or "")
            out = [import_stmt(mod, a.name, a.asname, indent) for a in node.names]
        else:
            for a in node.names:
                out += self.one(node.module, a.name, a.asname, indent, level, node)
        if comment and out:
            out[0] += f"  {comment[1]}"
        if self.group is not None and level in ("top", "typing"):
            (self.top if level == "top" else self.typing).extend(o.strip() for o in out)
            self.edits.append((start, end, ""))
        else:
            if level == "lazy" and not out:
                body = node.parent.body if node in getattr(node.parent, "body", []) else getattr(node.parent, "orelse", [])
                if len(body) == 1:
                    out = [indent + "pass"]
            if level == "typing" and not out and len(node.parent.body) == 1:
                out = [indent + "pass"]
            self.edits.append((start, end, "".join(o + "\n" for o in out)))

    def one(self, module: str, name: str, alias: str | None, indent: str, level: str, node: ast.AST) -> list[str]:
        sub = f"{module}.{name}"
        local = alias or name
        if sub in MODULES and not (module in MODULES and name in MODULES[module].exports):
            return self.module_import(sub, local, alias, indent, level, node)
        if module not in MODULES:
            problems.append(f"{self.m.path}: from {module} import {name}: not a module")
            return []
        target, new = where(module, name)
        if self.group == target and self.group is not None:
            if local != new:
                self.rename_symbol(local, new, local_ok=level == "lazy")
            else:
                self.check_unshadowed(local, level)
            if name not in MODULES[module].defs:
                # Re-exported within the group: it is imported at the top of the merged module already.
                pass
            return []
        if local == name and new != name:
            self.rename_symbol(name, new, local_ok=level == "lazy")
            return [import_stmt(target, new, None, indent)]
        return [import_stmt(target, new, alias, indent)]

    def check_unshadowed(self, local: str, level: str) -> None:
        pass  # a global that was imported and is now defined here: the same name, the same scope rules

    def rename_symbol(self, old: str, new: str, local_ok: bool) -> None:
        for n, stack in self.uses.get(old, []):
            if not local_ok and any(old in s for s in stack):
                continue
            if any(new in s for s in stack):
                problems.append(f"{self.m.path}:{n.lineno}: {old} -> {new} is shadowed")
            a, b = self.m.span(n)
            self.edits.append((a, b, new))
        node = self.m.defs.get(old)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and not local_ok:
            text = self.m.text.encode()
            a = self.m.starts[node.lineno - 1] + node.col_offset
            i = text.index(old.encode(), a)
            self.edits.append((i, i + len(old.encode()), new))

    def module_import(self, sub: str, local: str, alias: str | None, indent: str, level: str, node: ast.AST) -> list[str]:
        new = NEW[sub]
        out: list[str] = []
        attrs: dict[str, list[tuple[ast.Name, ast.Attribute, tuple]]] = defaultdict(list)
        bare = False
        for n, stack in self.uses.get(local, []):
            if level != "lazy" and any(local in s for s in stack):
                continue
            parent = self.scopes.parents.get(id(n))
            if isinstance(parent, ast.Attribute):
                attrs[parent.attr].append((n, parent, stack))
            else:
                bare = True
        same = self.group is not None and new == self.group
        last = new.rpartition(".")[2]
        use = local
        if not same and not alias and last != local:
            use = last if last not in self.all_names else local
        needs = bare
        for attr, places in attrs.items():
            target, name = where(sub, attr)
            for n, parent, stack in places:
                if target == self.group and self.group is not None:
                    if any(name in s for s in stack):
                        problems.append(f"{self.m.path}:{n.lineno}: {local}.{attr} is shadowed by a local {name}")
                    a, b = self.m.span(parent)
                    self.edits.append((a, b, name))
                elif target != new:
                    problems.append(f"{self.m.path}:{n.lineno}: {local}.{attr} moves to {target}")
                else:
                    needs = True
                    if use != local or name != attr:
                        a, b = self.m.span(parent)
                        self.edits.append((a, b, f"{use}.{name}"))
        if same:
            if bare:
                problems.append(f"{self.m.path}: {local} is used as a module in its own group {self.group}")
            return []
        if use != local and bare:
            for n, stack in self.uses.get(local, []):
                if isinstance(self.scopes.parents.get(id(n)), ast.Attribute):
                    continue
                if level != "lazy" and any(local in s for s in stack):
                    continue
                a, b = self.m.span(n)
                self.edits.append((a, b, use))
        package = new.rpartition(".")[0]
        del needs
        return [*out, import_stmt(package, last, use if use != last else None, indent)]

    def text(self, drop: list[ast.stmt] = ()) -> str:  # type: ignore[assignment]
        edits = list(self.edits)
        for node in drop:
            a, b = self.m.lines(node)
            edits = [e for e in edits if not (a <= e[0] and e[1] <= b)]
            edits.append((a, b, ""))
        data = self.m.text.encode()
        done = len(data) + 1
        for a, b, new in sorted(set(edits), reverse=True):
            if b > done:
                problems.append(f"{self.m.path}: edits overlap at byte {a}: {new!r}")
                continue
            data = data[:a] + new.encode() + data[b:]
            done = a
        return data.decode()


def at_import(nodes: list[ast.stmt]) -> set[str]:
    """Names that statements read when the module is loaded."""
    names: set[str] = set()

    def walk(n: ast.AST, of_class: bool = False) -> None:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for d in [*n.decorator_list, *n.args.defaults, *[k for k in n.args.kw_defaults if k]]:
                walk(d)
            return
        if isinstance(n, ast.Lambda):
            return
        if isinstance(n, ast.AnnAssign):
            if n.value:
                walk(n.value)
            return
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            names.add(n.id)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in SHORT:
            names.add(n.attr)    # module.attr, which may have become a bare name
        for c in ast.iter_child_nodes(n):
            walk(c)

    for node in nodes:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            walk(node)
    return names


def topo(chunks: dict[str, list[ast.stmt]], main: str | None) -> list[str]:
    """The chunks of one merged module, what is used when it is loaded first; ``main`` as early as that allows."""
    defs = {k: {d for n in nodes for d in defined(n)} for k, nodes in chunks.items()}
    reads = {k: at_import(nodes) for k, nodes in chunks.items()}
    edges = {k: {o for o in chunks if o != k and reads[k] & defs[o]} for k in chunks}
    out: list[str] = []

    def add(k: str, way: tuple[str, ...]) -> None:
        if k in out:
            return
        if k in way:
            problems.append(f"a circle in one module: {way} {k}")
            return
        for e in sorted(edges[k]):
            add(e, (*way, k))
        out.append(k)

    for k in ([main] if main in chunks else []) + sorted(chunks):
        add(k, ())
    return out


def docstring(m: Module) -> ast.Expr | None:
    first = m.tree.body[0] if m.tree.body else None
    return first if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str) else None


def as_comment(text: str) -> str:
    """A docstring as a comment of at most 120 columns; paragraphs are wrapped, what is indented stays."""
    import inspect
    import textwrap

    out = []
    for paragraph in inspect.cleandoc(ast.literal_eval(text)).split("\n\n"):
        lines = paragraph.splitlines()
        plain = not any(line.startswith((" ", "-", "=", "+", "|", "*")) or re.match(r"\d+\. ", line) for line in lines)
        if plain and any(len(line) > 117 for line in lines):
            lines = textwrap.wrap(" ".join(lines), 117)
        out += [*lines, ""]
    return "".join(f"# {line}".rstrip() + "\n" for line in out[:-1])


def split_parts(m: Module, rw: Rewriter, names: set[str]) -> tuple[str, list[ast.stmt]]:
    """Text of statements that leave for another module (with comments above them), and the statements."""
    raise NotImplementedError


def main() -> None:
    written: dict[Path, str] = {}
    removed: list[Path] = []
    leaving: dict[str, list[tuple[str, str]]] = defaultdict(list)  # new module -> [(old, text)]
    leaving_imports: dict[str, list[str]] = defaultdict(list)
    rewriters: dict[str, Rewriter] = {}
    drops: dict[str, list[ast.stmt]] = defaultdict(list)
    for old, m in MODULES.items():
        new = NEW[old]
        grouped = len(MERGED[new]) > 1 or new in {t for by in SPLIT.values() for t in by.values()}
        rw = Rewriter(m, new if grouped else None)
        rw.run()
        rewriters[old] = rw
    # Symbols that leave.
    for old, by in SPLIT.items():
        m = MODULES[old]
        for new in set(by.values()):
            part = Rewriter(m, new)
            part.run()
            keep = [s for s in m.tree.body if any(by.get(d) == new for d in defined(s))]
            text = m.text.encode()
            chunks = []
            for s in keep:
                a, b = m.lines(s)
                i = m.tree.body.index(s)
                following = m.tree.body[i + 1] if i + 1 < len(m.tree.body) else None
                if following is not None and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    b = m.lines(following)[1]
                    drops[old].append(following)
                chunks.append((a, b))
                drops[old].append(s)
            data = text
            body = []
            for a, b in chunks:
                seg = data[a:b]
                inner = [(x - a, y - a, n) for x, y, n in set(part.edits) if a <= x and y <= b]
                for x, y, n in sorted(inner, reverse=True):
                    seg = seg[:x] + n.encode() + seg[y:]
                body.append(seg.decode())
            leaving[new].append((old, "\n\n".join(body)))
            leaving_imports[new] += part.top
            leaving_imports[new + ":typing"] += part.typing
            # What stays uses what left, and the other way round: import all, ruff removes what is not used.
            stays = {d for s in m.tree.body for d in defined(s)} - {d for d, t in by.items() if t == new}
            leaving_imports[new + ":cross"] += [import_stmt(home(old, d), renamed(old, d), None) for d in stays if home(old, d) != new]
            mine = [import_stmt(new, renamed(old, d), None) for d, t in by.items() if t == new]
            rewriters[old].top_extra = [*getattr(rewriters[old], "top_extra", []), *mine]
    news = sorted(set(MERGED) | set(leaving))
    packages = set(LAYOUT.get("package", [])) | {n.rpartition(".")[0] for n in news}
    for new in news:
        olds = MERGED.get(new, [])
        path = SRC / (new.replace(".", "/") + ("/__init__.py" if new in packages else ".py"))
        for o in olds:
            if MODULES[o].path != path:
                removed.append(MODULES[o].path)
        if len(olds) == 1 and new not in leaving:
            rw = rewriters[olds[0]]
            if rw.group is None:
                text = rw.text(drops[olds[0]])
                extra = getattr(rw, "top_extra", [])
                if extra:
                    text = text.replace("from __future__ import annotations\n", "from __future__ import annotations\n\n" + "\n".join(extra) + "\n", 1)
                written[path] = text
                continue
        written[path] = merge(new, olds, rewriters, drops, leaving.get(new, []), leaving_imports)
    for new in news:
        package, _, last = new.rpartition(".")
        if package in MODULES and NEW[package] == package and last in MODULES[package].exports:
            problems.append(f"{new}: {package} exports a function of this name")
    return_tests(written)
    for p in removed:
        p.unlink()
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for folder in sorted((SRC / "ferryman").rglob("*"), reverse=True):
        if folder.is_dir() and not any(f for f in folder.iterdir() if f.name != "__pycache__"):
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    for p in problems:
        print("PROBLEM", p)
    print(len(problems), "problems;", len(list((SRC / "ferryman").rglob("*.py"))), "modules")


def merge(new, olds, rewriters, drops, parts, leaving_imports) -> str:
    main_old = LAYOUT.get("main", {}).get(new) or next((o for o in olds if o == new), None) or (max(olds, key=lambda o: len(MODULES[o].text)) if olds else None)
    chunks = {o: [n for n in MODULES[o].tree.body if n not in drops[o] and all(home(o, d) == new for d in defined(n))] for o in olds}
    for o, text in parts:
        chunks[f"{o}:part"] = ast.parse(text).body
    order = topo(chunks, main_old)
    tops: list[str] = []
    typing: list[str] = []
    alls: list[str] = []
    bodies: list[str] = []
    names: dict[str, str] = {}
    head = f'"""{new}."""'
    tops += leaving_imports.get(new, []) + leaving_imports.get(new + ":cross", [])
    typing += leaving_imports.get(new + ":typing", [])
    for o in order:
        if o.endswith(":part"):
            bodies.append(dict(parts)[o.removesuffix(":part")])
            continue
        m, rw = MODULES[o], rewriters[o]
        drop = list(drops[o])
        doc = docstring(m)
        comment = ""
        if doc is not None:
            a, b = m.span(doc)
            literal = m.text.encode()[a:b].decode()
            if o == main_old:
                head = literal
            else:
                comment = as_comment(literal)
            drop.append(doc)
        for s in m.tree.body:
            if isinstance(s, ast.If) and ast.unparse(s.test) == "TYPE_CHECKING":
                if all(isinstance(x, (ast.Import, ast.ImportFrom)) for x in s.body):
                    drop.append(s)
                else:
                    problems.append(f"{m.path}: TYPE_CHECKING holds more than imports")
            if defined(s) == ["__all__"]:
                alls += ast.literal_eval(s.value)
                drop.append(s)
        tops += rw.top + getattr(rw, "top_extra", [])
        typing += rw.typing
        for d in m.defs:
            if d == "__all__" or home(o, d) != new:
                continue
            n = renamed(o, d)
            if n in names and ast.unparse(m.defs[d]) == ast.unparse(MODULES[names[n]].defs[d]):
                drop.append(m.defs[d])    # the same text twice
                continue
            if n in names:
                problems.append(f"{new}: {n} is in {names[n]} and {o}")
            names[n] = o
        body = rw.text(drop).strip("\n")
        if body:
            bodies.append((comment + "\n" if comment else "") + body)
    imported: dict[str, str] = {}
    for stmt in tops:
        node = ast.parse(stmt).body[0]
        for a in node.names:
            local = a.asname or a.name
            what = f"{getattr(node, 'module', '')}.{a.name}"
            if imported.setdefault(local, what) != what:
                problems.append(f"{new}: {local} is imported as {imported[local]} and {what}")
            if local in names:
                problems.append(f"{new}: {local} is defined in {names[local]} and imported as {what}")
    unique = [s for s in dict.fromkeys(tops) if "__future__" not in s]
    typed = [s for s in dict.fromkeys(typing) if s not in unique and ast.parse(s).body[0].names[0].name not in names]
    out = [head, "", "from __future__ import annotations", "", *unique]
    if typed:
        if "from typing import TYPE_CHECKING" not in unique:
            out.append("from typing import TYPE_CHECKING")
        out += ["", "if TYPE_CHECKING:", *[f"    {s}" for s in typed]]
    if alls:
        out += ["", "__all__ = " + json.dumps(sorted(dict.fromkeys(alls)))]
    return "\n".join(out) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def return_tests(written: dict[Path, str]) -> None:
    """Imports and dotted names in everything else."""
    others = [p for base in ("tests", "scripts", "bench", "docs") for p in sorted((ROOT / base).rglob("*.py"))]
    for p in others:
        m = Module(p, None)
        if "ferryman" not in m.text:
            continue
        rw = Rewriter(m, None)
        rw.run()
        written[p] = rw.text()
    texts = [*ROOT.glob("*.toml"), *ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / "scripts").glob("setup"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.toml"), *(ROOT / "tests").rglob("*.md")]
    for p in texts:
        written.setdefault(p, p.read_text("utf-8"))
    moved = {o: n for o, n in NEW.items() if o != n}
    pattern = re.compile(r"(?<![\w./-])(" + "|".join(re.escape(o) for o in sorted(moved, key=len, reverse=True)) + r")(?![\w-])")
    paths = {}
    for o, n in moved.items():
        old = MODULES[o].path.relative_to(SRC / "ferryman").as_posix()
        paths[old] = n.removeprefix("ferryman.").replace(".", "/") + ".py"
    path_pattern = re.compile(r"(?<![\w.-])((?:src/)?ferryman/|(?<![/\w]))(" + "|".join(re.escape(o) for o in sorted(paths, key=len, reverse=True)) + r")(?![\w-])")
    short = {o.removeprefix("ferryman."): o for o in MODULES if o.count(".") > 1}
    short_pattern = re.compile(r"(?<=`)(" + "|".join(re.escape(o) for o in sorted(short, key=len, reverse=True)) + r")(?:\.(\w+))?(?=[.`])")

    def short_name(found):
        old, symbol = short[found[1]], found[2]
        if symbol is None:
            return NEW[old].removeprefix("ferryman.")
        if f"{old}.{symbol}" in MODULES:
            return found[0]
        target, new = where(old, symbol)
        return f"{target.removeprefix('ferryman.')}.{new}"

    for p in list(written):
        text = written[p]
        if p.suffix == ".py":
            written[p] = in_strings(text, lambda part: pattern.sub(lambda f: moved[f[1]], part))
        elif p.suffix in (".md", ".toml") or p.name in ("Makefile", "setup"):
            text = pattern.sub(lambda f: moved[f[1]], text)
            if p.suffix == ".md":
                text = short_pattern.sub(short_name, text)
            written[p] = path_pattern.sub(lambda f: f[1] + paths[f[2]], text)


def in_strings(text, change):
    """Apply to strings and comments only: imports are rewritten already."""
    import io
    import tokenize

    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) and "ferryman." in token.string:
            new = change(token.string)
            if new != token.string:
                edits.append((starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1], new))
    for a, b, new in reversed(edits):
        text = text[:a] + new + text[b:]
    return text


main()
