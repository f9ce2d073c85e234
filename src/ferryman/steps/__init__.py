"""Ready-made steps: each call makes a function of a document, to be given to ``Plan.step``.

They change what is there and leave alone what is not: a field that is missing, or holds null, is not an error. Where a
field may hold one value or a list of values, every value is treated alike. A value that cannot be treated is an error
of its document, ``BadDocument``, which names both. Arguments that cannot be meant are a ``ValueError`` as soon as the
step is made, so ``ferryman plan check`` finds them.

They are frozen dataclasses in small letters, as PEP 8 has it for what is used as a function: that gives each a name in
the plan's picture, and makes its arguments part of the plan's fingerprint.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ferryman.steps.fields import copy_field, drop_fields, drop_if, format_size, reformat_date, rename_field, set_field
from ferryman.steps.text import fill_template, keep_matches, replace_matches, split, split_text, trim, url_encode
from ferryman.steps.unpack import unpack

if TYPE_CHECKING:
    from ferryman.steps.embed import embed_text
    from ferryman.steps.extract import extract_text
    from ferryman.steps.fetch import fetch_url
    from ferryman.steps.page_text import main_text
    from ferryman.steps.xml import read_xml

__all__ = [
    "copy_field",
    "drop_fields",
    "drop_if",
    "embed_text",
    "extract_text",
    "fetch_url",
    "fill_template",
    "format_size",
    "keep_matches",
    "main_text",
    "read_xml",
    "reformat_date",
    "rename_field",
    "replace_matches",
    "set_field",
    "split",
    "split_text",
    "trim",
    "unpack",
    "url_encode",
]

_HEAVY: Final = {
    "embed_text": "embed",
    "extract_text": "extract",
    "fetch_url": "fetch",
    "main_text": "page_text",
    "read_xml": "xml",
}
"""Names loaded on demand, and their modules: together they take as long to load as all other steps and plans. A module
with the name of its function would hide that."""


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(f"ferryman.steps.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
