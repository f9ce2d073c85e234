"""What an operator is shown of values that submitters gave: URLs without passwords and tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ferryman.net import shown

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s\"'<>]+")


def without_secrets(value: Any) -> Any:
    """The same value; each URL in it without user, password and query, where passwords and tokens are."""
    if isinstance(value, str):
        return _URL.sub(lambda found: shown(found[0]), value)
    if isinstance(value, Mapping):
        return {name: without_secrets(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return value


def dump_without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A dump, the URLs in its nodes without passwords and tokens. What needs them cannot be fetched after a restore."""
    return {**data, "nodes": {path: _node(value) for path, value in data["nodes"].items()}}


def _node(value: Any) -> Any:
    if not isinstance(value, str):
        return value if "base64" not in value else _bytes(value)
    try:
        decoded = json.loads(value)
    except ValueError:
        return without_secrets(value)
    if not isinstance(decoded, dict | list):
        return value
    hidden = without_secrets(decoded)
    return value if hidden == decoded else json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))


def _bytes(value: Mapping[str, str]) -> Mapping[str, str]:
    """What is not text may hold a URL all the same."""
    data = base64.b64decode(value["base64"]).decode("latin-1")
    if _URL.search(data) is None:
        return value
    hidden = without_secrets(data).replace("…", "...").encode("latin-1")
    return {"base64": base64.b64encode(hidden).decode()}
