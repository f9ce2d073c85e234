"""Formats that are zip archives inside: DOCX, ODT, EPUB and their like."""

from __future__ import annotations

import posixpath
import zipfile
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.steps.formats.content import Unreadable, line, moment

if TYPE_CHECKING:
    from lxml.etree import _Element

_CORE: Final = "docProps/core.xml"
"""Where Office keeps title and author."""


class Package:
    """A zip archive in memory. Its declared sizes are looked at before anything is unpacked.

    Raises:
        Unreadable: it would unpack to more than is taken, or is encrypted.
        zipfile.BadZipFile: it is broken.
    """

    def __init__(self, raw: bytes) -> None:
        self._zip = zipfile.ZipFile(BytesIO(raw))
        self._infos = {info.filename: info for info in self._zip.infolist()}
        unpacked = sum(info.file_size for info in self._infos.values())
        if unpacked > limits.EXTRACT_UNPACKED_BYTES:
            raise Unreadable(
                f"it unpacks to {unpacked} bytes, more than {limits.EXTRACT_UNPACKED_BYTES}: a decompression bomb, or "
                "too large. Leave it out, or split it"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    @property
    def names(self) -> list[str]:
        """Of all members, in their order."""
        return list(self._infos)

    def read(self, name: str) -> bytes:
        """A member's bytes, never more than it declares.

        Raises:
            Unreadable: it is not there, is encrypted, or is larger than one part may be.
        """
        info = self._infos.get(name)
        if info is None:
            raise Unreadable(f"its part {name} is missing: the file is broken. Save it again")
        if info.flag_bits & 1:
            raise Unreadable("it is encrypted. Save it without a password")
        if info.file_size > limits.EXTRACT_PART_BYTES:
            raise Unreadable(
                f"its part {name} unpacks to {info.file_size} bytes, more than {limits.EXTRACT_PART_BYTES}. Split it"
            )
        return self._zip.read(info)

    def xml(self, name: str) -> _Element:
        """A member as XML."""
        return parsed(self.read(name))


def parsed(raw: bytes) -> _Element:
    """The root of untrusted XML: no entity is resolved, nothing is loaded, and depth and sizes are bounded."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    return etree.fromstring(raw, parser)


def core_fields(package: Package) -> dict[str, Any]:
    """Title, author, dates and language that an Office file says of itself."""
    return described(package.xml(_CORE)) if _CORE in package else {}


def described(root: _Element) -> dict[str, Any]:
    """The same from Dublin Core elements anywhere below: Office, OpenDocument and EPUB all use them."""
    found: dict[str, list[str]] = {}
    for element in root.iter("{*}*"):
        name = local(element)
        if element.text and element.text.strip():
            found.setdefault(name, []).append(element.text)
    fields = {
        "title": line(found.get("title", [""])[0]),
        "author": "; ".join(map(line, found.get("initial-creator") or found.get("creator") or [])),
        "created": moment((found.get("created") or found.get("creation-date") or [""])[0]),
        "modified": moment((found.get("modified") or found.get("date") or [""])[0]),
        "language": line(found.get("language", [""])[0]),
    }
    return {name: value for name, value in fields.items() if value}


def related(package: Package, part: str) -> dict[str, str]:
    """Targets of an Office part's relationships, by their ids."""
    folder, name = posixpath.split(part)
    rels = f"{folder}/_rels/{name}.rels".lstrip("/")
    if rels not in package:
        return {}
    return {
        element.get("Id", ""): posixpath.normpath(posixpath.join("/", folder, element.get("Target", "")))[1:]
        for element in package.xml(rels).iter("{*}Relationship")
        if element.get("TargetMode") != "External"
    }


def local(element: _Element) -> str:
    """An element's name without its namespace; "" for comments and the like."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
