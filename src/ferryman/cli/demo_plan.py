"""Index the standard library of this Python, and a few files that are broken on purpose, into SQLite.

`ferryman demo` runs this plan. It is yours: change it and run it again.
"""

import ast
import inspect
import io
import sysconfig
import tokenize
import warnings
from pathlib import Path

from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.sources import Files

HERE = Path(__file__).parent

LIBRARY = Files(
    sysconfig.get_path("stdlib"),
    include="**/*.py",
    # Installed packages live below the library, but are none of it; sitecustomize.py may be a link out of it.
    exclude=["**/site-packages", "**/dist-packages", "**/__pycache__", "sitecustomize.py", "usercustomize.py"],
)
BROKEN = Files(HERE / "broken", prefix="broken/")  # the prefix keeps the ids of the two sources apart


def describe(doc: Document) -> Document:
    """Title, path and docstring of a file."""
    text = python_text(doc) if doc.id.endswith(".py") else doc.text()
    about = docstring(text) if doc.id.endswith(".py") else ""
    name = doc.id.removesuffix(".py").removesuffix("/__init__").replace("/", ".") if doc.id.endswith(".py") else doc.id
    first_line = about.partition("\n")[0]
    doc["title"] = f"{name}: {first_line}" if first_line else name
    doc["path"] = doc.id
    doc["docstring"] = about
    return doc


def python_text(doc: Document) -> str:
    """The source text, by the encoding that the file itself declares (PEP 263).

    The library's tests hold files that break this rule on purpose. They are still worth finding: they are read as
    Latin-1, in which every byte is a letter, and the document says so.
    """
    raw = doc.raw or b""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, LookupError, UnicodeError) as e:
        encoding, text = "latin-1", raw.decode("latin-1")
        doc["badly_encoded"] = str(e)
    doc["encoding"] = encoding
    doc.raw = text.encode("utf-8", errors="replace")  # what destinations get is UTF-8
    return text


def docstring(text: str) -> str:
    """The module's docstring, found without running or even parsing the whole file; "" if there is none."""
    strings = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                strings.append(token.string)
            elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER) or token.string == ";":
                break
            elif token.type not in (tokenize.COMMENT, tokenize.NL):
                return ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes, which are the library's business
            value = ast.literal_eval(f"({' '.join(strings)})")
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ""  # no Python of this version: some of the library's test data
    return inspect.cleandoc(value).encode("utf-8", "replace").decode() if isinstance(value, str) else ""


plan = Plan("standard-library", version=1)
library = plan.source("library", LIBRARY)
broken = plan.source("broken", BROKEN)
described = plan.step("describe", describe, after=[library, broken])
described.destination(
    "documents",
    Sql(
        f"sqlite:///{HERE / 'index.db'}",
        columns={"title": "title", "path": "path", "docstring": "docstring"},
        full_text=["title", "path", "docstring", "text"],
    ),
)
