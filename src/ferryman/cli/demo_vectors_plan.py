"""Index the standard library of this Python by meaning, into SQLite with vectors.

`ferryman demo --vectors` runs this plan. It is yours: change it and run it again.
"""

import ast
import sysconfig
import warnings
from pathlib import Path

from ferryman import Document, Dropped, Plan
from ferryman.destinations import Sql
from ferryman.sources import Files
from ferryman.steps import embed_text

HERE = Path(__file__).parent

LIBRARY = Files(
    sysconfig.get_path("stdlib"),
    include="**/*.py",
    # Installed packages live below the library, but are none of it; nobody asks for its tests and its codecs.
    exclude=[
        *("**/site-packages", "**/dist-packages", "**/__pycache__", "sitecustomize.py", "usercustomize.py"),
        *("**/test", "**/tests", "**/idle_test", "distutils", "encodings", "idlelib", "lib2to3", "turtledemo"),
        "**/_[!_]*.py",
    ],
)


def describe(doc: Document) -> Document:
    """Name of a module, the package that it is in, and the beginning of its docstring."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes, which are the library's business
            about = ast.get_docstring(ast.parse(doc.raw or b""))
    except (SyntaxError, ValueError):
        about = None
    if not about:
        raise Dropped("no docstring")
    name = doc.id.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    doc["title"] = f"{name}: {about.partition(chr(10))[0]}"
    doc["package"] = name.partition(".")[0]
    doc["about"] = about[:500]  # later come names of functions, which say little
    return doc


plan = Plan("standard-library-vectors", version=1)
described = plan.source("library", LIBRARY).step("describe", describe)
embedded = described.step("embed", embed_text(field="about", context="title"), batch=64)
embedded.destination(
    "documents",
    Sql(
        f"sqlite:///{HERE / 'vectors.db'}",
        columns={"title": "title", "about": "about"},
        full_text=["title", "about", "text"],
        vectors={"vector": 256},
    ),
)
