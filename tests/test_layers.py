"""Ferryman imports without Spark: plans are built, states read and destinations tested where there is none.

The layers themselves are contracts in pyproject.toml, checked by `make lint`; they read import
statements. This test looks at what is really loaded.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

# The engine is Spark's. What stands above it may load it when it is called: then the package itself
# imports without Spark (`ferryman --help` must), while its modules need not.
ENGINE = "ferryman.engine"
ABOVE_ENGINE = ("ferryman.cli", "ferryman.intake.service")

# Imports each module named on the command line, pyspark and py4j blocked. Prints {module: error}.
PROBE = """
import importlib, json, sys, traceback

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is blocked: only ferryman.engine may import it", name=name)

sys.meta_path.insert(0, NoSpark())
errors = {}
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except BaseException:
        errors[module] = traceback.format_exc(limit=-3)
print(json.dumps(errors))
"""


def modules_below(package: str, folders: list[str]) -> Iterator[str]:
    """Names of all modules in a package, found without importing any."""
    for module in pkgutil.iter_modules(folders, prefix=f"{package}."):
        yield module.name
        if module.ispkg:
            yield from modules_below(module.name, [f"{folder}/{module.name.rpartition('.')[2]}" for folder in folders])


def imports_without_spark(module: str) -> bool:
    if module == ENGINE or module.startswith(f"{ENGINE}."):
        return False
    return not module.startswith(tuple(f"{package}." for package in ABOVE_ENGINE))


def probe(modules: list[str]) -> dict[str, str]:
    """The modules that cannot be imported without Spark, in a fresh interpreter, and why."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *modules], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_everything_but_the_engine_imports_without_pyspark() -> None:
    """Every module outside the engine can be imported where pyspark is not installed."""
    spec = find_spec("ferryman")
    assert spec is not None
    assert spec.submodule_search_locations
    modules = [
        "ferryman",
        *filter(imports_without_spark, modules_below("ferryman", list(spec.submodule_search_locations))),
    ]

    errors = probe(modules)

    assert not errors, "\n".join(f"{module}:\n{why}" for module, why in errors.items())


def test_the_probe_sees_an_import_of_pyspark() -> None:
    """The blocked interpreter refuses pyspark, so that the test above cannot pass by not looking."""
    assert "blocked" in probe(["pyspark.sql"])["pyspark.sql"]
