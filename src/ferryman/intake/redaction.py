"""What an operator is shown of values that submitters gave: URLs without passwords and tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ferryman.net import shown

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?:[^\s/?#]*@)?[^\s\"'<>]+")
"""In a text."""

_WHOLE: Final = re.compile(r"\s*([a-z][a-z0-9+.-]{1,30}:[/\\]+|(?:https?|ftp):|//)(.*)", re.DOTALL | re.IGNORECASE)
"""A value that is a URL, well-formed or not: what it begins with, and the rest."""

_HOST: Final = re.compile(r"(?:\[[^\]]*\]|[^:/?#]*)(?::[0-9]*)?(?=[/?#]|$)")

_TEXTS: Final = ("message", "why")
"""Keys of what people read, which may begin with a URL."""


def without_secrets(value: Any, *, is_text: bool = False) -> Any:
    """The same value; each URL in it without user, password and query, where passwords and tokens are."""
    if isinstance(value, str):
        found = None if is_text else _WHOLE.fullmatch(value)
        return _shown_whole(*found.groups()) if found else _in_text(value)
    if isinstance(value, Mapping):
        return {name: without_secrets(one, is_text=name in _TEXTS) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return value


def _shown_whole(begins: str, rest: str) -> str:
    """Passwords may have characters that should have been encoded: where no host can be, it is up to the last ``@``."""
    if _HOST.match(rest) is None or "@" in re.split("[/?#]", rest, maxsplit=1)[0]:
        rest = rest.rpartition("@")[2]
    return _in_text(shown(f"{begins}{rest}"))


def _in_text(text: str) -> str:
    return _URL.sub(lambda found: shown(found[0]), text)


def dump_without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A dump, the URLs in its nodes without passwords and tokens. What needs them cannot be fetched after a restore."""
    return {**data, "nodes": {path: _node(value) for path, value in data["nodes"].items()}}


def _node(value: Any) -> Any:
    if not isinstance(value, str):
        return value if "base64" not in value else _bytes(value)
    try:
        decoded = json.loads(value)
    except ValueError:
        return without_secrets(value, is_text=True)
    if not isinstance(decoded, dict | list):
        return value
    hidden = without_secrets(decoded)
    return value if hidden == decoded else json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))


def _bytes(value: Mapping[str, str]) -> Mapping[str, str]:
    """What is not text may hold a URL all the same."""
    data = base64.b64decode(value["base64"]).decode("latin-1")
    if _URL.search(data) is None:
        return value
    hidden = without_secrets(data, is_text=True).replace("…", "...").encode("latin-1")
    return {"base64": base64.b64encode(hidden).decode()}
