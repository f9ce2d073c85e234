"""What ``ferryman.destinations`` gives to plans."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ferryman.destinations
from ferryman.destinations import Directory, Effect, JsonLines, Memory, Null, OpenSearch, Solr, Sql, Webhook
from ferryman.testing.destinations import delivery


def test_every_exported_name_is_there() -> None:
    """``__all__`` names what can be imported, in alphabetical order; other names are refused as usual."""
    exported = ferryman.destinations.__all__
    assert exported == sorted(exported)
    assert all(hasattr(ferryman.destinations, name) for name in exported)
    with pytest.raises(AttributeError, match="no attribute 'Sqll'"):
        _ = ferryman.destinations.Sqll


def test_what_is_heavy_is_loaded_by_those_who_need_it() -> None:
    """A plan without databases and servers, and the command line, start without SQLAlchemy and urllib3."""
    script = "import sys, ferryman.destinations; sys.exit(bool({'sqlalchemy', 'urllib3'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=300).returncode == 0


def test_what_each_can_do() -> None:
    """Effects and abilities, from which the default guarantee follows."""
    abilities = {
        d: (d.effect, d.transactional) for d in (Sql, OpenSearch, JsonLines, Memory, Null, Directory, Solr, Webhook)
    }
    assert abilities == {
        Sql: (Effect.IDEMPOTENT, True),
        OpenSearch: (Effect.IDEMPOTENT, True),
        JsonLines: (Effect.IDEMPOTENT, False),
        Memory: (Effect.POTENT, True),
        Null: (Effect.IDEMPOTENT, True),
        Directory: (Effect.IDEMPOTENT, False),
        Solr: (Effect.IDEMPOTENT, False),
        Webhook: (Effect.POTENT, False),
    }
    assert Sql("sqlite:///index.db").single_writer
    assert Sql.compares_sequences


def test_null_takes_everything() -> None:
    """One ok a delivery, and nothing happens."""
    outcomes = Null().write([delivery("a", 1), delivery("b", 2)])
    assert [outcome.kind for outcome in outcomes] == ["ok", "ok"]
