"""PDF, read by PDFium, the reader in Chromium."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final

from ferryman import limits
from ferryman.steps.formats import Attachment, Content, Unread, Unreadable, clean, format_time, one_line

_HYPHEN: Final = re.compile("[\ufffe\x02](?:\r?\n)?")
"""Hyphen that PDFium recognised as one at the end of a line, in the middle of a word."""

_LIGATURES: Final = {0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl"}
"""Ligatures of TeX's bitmap fonts (T1), which have no names there: PDFium gives their numbers, which mean nothing in a
text."""

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")

_DATE: Final = re.compile(r"(?:D:)?(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(?:(Z)|([+-])(\d\d)'?(\d\d)?'?)?")


_NOTES: Final = (
    *("FPDF_ANNOT_TEXT", "FPDF_ANNOT_FREETEXT", "FPDF_ANNOT_LINE", "FPDF_ANNOT_SQUARE", "FPDF_ANNOT_CIRCLE"),
    *("FPDF_ANNOT_POLYGON", "FPDF_ANNOT_POLYLINE", "FPDF_ANNOT_HIGHLIGHT", "FPDF_ANNOT_UNDERLINE"),
    *("FPDF_ANNOT_SQUIGGLY", "FPDF_ANNOT_STRIKEOUT", "FPDF_ANNOT_STAMP", "FPDF_ANNOT_CARET", "FPDF_ANNOT_INK"),
)
"""Annotations whose contents are words of a person; those of links describe their target."""

_TEXT_BYTES: Final = limits.MIB
"""Longest text of a field or a note."""

_PAGE_UNITS: Final = 1_000_000
"""Longest side of a page, 350 m in print: PDFium takes a bit for each unit of both, 256 MB where a side is damaged."""

_LISTED_PAGES: Final = 100
"""Pages that the field ``unread_pages`` lists, at most."""


def pdf(raw: bytes) -> Content:
    """Read the text of all pages in order, each followed by the values of its form's fields, and its notes; embedded
    files as parts.

    Pages that are pictures have no text; these, and pages that are missing or damaged, are named as unread.
    """
    import pypdfium2

    try:
        book = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as e:
        if "password" in str(e).lower():
            raise Unreadable("it is encrypted. Save it without a password") from None
        raise
    try:
        reader = _Book(book)
        meta = book.get_metadata_dict(skip_empty=True)
        count = len(book)
        if count > limits.EXTRACT_PAGES:
            raise Unreadable(f"it has {count} pages, more than {limits.EXTRACT_PAGES}. Split it")
        text = "\n\n".join(reader.page(number) for number in range(count))
        parts = reader.embedded_files()
    finally:
        book.close()
    fields: dict[str, Any] = {
        "title": one_line(meta.get("Title")),
        "author": one_line(meta.get("Author")),
        "created": _iso_date(meta.get("CreationDate", "")),
        "modified": _iso_date(meta.get("ModDate", "")),
        "pages": count,
        "unread_pages": reader.unread_pages,
    }
    if "\ufffe" in text or "\x02" in text:
        text = _HYPHEN.sub("", text)
    return Content(text, {name: value for name, value in fields.items() if value} | reader.unread.fields, parts)


class _Book:
    """Reads the parts of an open PDF."""

    def __init__(self, book: Any) -> None:
        import pypdfium2
        import pypdfium2.raw as pdfium

        self._book, self._pdfium = book, pdfium
        self.unread = Unread()
        self.unread_pages: list[int] = []
        """Numbers of pages that are missing, damaged or a picture, from 1 on."""
        self._files: dict[tuple[str, bytes], None] = {}
        self._bytes_left = limits.EXTRACT_PART_BYTES
        self._kinds = {getattr(pdfium, name) for name in _NOTES}
        form = book.get_formtype()
        if form in (pdfium.FORMTYPE_XFA_FULL, pdfium.FORMTYPE_XFA_FOREGROUND):
            self.unread.add("XFA form")
        elif form != pdfium.FORMTYPE_NONE:
            try:
                book.init_forms()  # before the first page is loaded
            except pypdfium2.PdfiumError:
                self.unread.add("form fields")

    def page(self, number: int) -> str:
        """Return a page's text; "" if the page is damaged, so that the others are read."""
        import pypdfium2

        try:
            page = self._book[number]
        except pypdfium2.PdfiumError:
            self._leave_out(number, "pages")
            return ""
        try:
            _limit_size(page)
            letters = page.get_textpage()
            text = self._readable(letters, letters.get_text_range())
            letters.close()
            blocks = list(dict.fromkeys(self._beside(page)))
            if not text.strip() and not blocks and self._has_picture(page):
                self._leave_out(number, "pages that are pictures")
            return "\n\n".join([text, *blocks])
        finally:
            page.close()

    def _readable(self, letters: Any, text: str) -> str:
        """Return a page's text with TeX's ligatures as letters; characters whose meaning its fonts do not say are
        named as unread."""
        pdfium = self._pdfium
        if not text.isascii() or _CONTROLS.search(text):
            for index in range(letters.count_chars()):
                code = pdfium.FPDFText_GetUnicode(letters, index)
                is_doubtful = code > 0x7E or (code < 0x20 and code not in _LIGATURES)
                if is_doubtful and pdfium.FPDFText_HasUnicodeMapError(letters, index) == 1:
                    self.unread.add("characters")
                    break
        return text.translate(_LIGATURES)

    def _leave_out(self, number: int, what: str) -> None:
        self.unread.add(what)
        if len(self.unread_pages) < _LISTED_PAGES:
            self.unread_pages.append(number + 1)

    def _has_picture(self, page: Any) -> bool:
        return next(iter(page.get_objects(filter=[self._pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3)), None) is not None

    def _beside(self, page: Any) -> Iterator[str]:
        """Yield the values of fields on a page and the words of notes, in their order."""
        pdfium = self._pdfium
        for index in range(pdfium.FPDFPage_GetAnnotCount(page)):
            annotation = pdfium.FPDFPage_GetAnnot(page, index)
            if not annotation:
                continue
            try:
                kind = pdfium.FPDFAnnot_GetSubtype(annotation)
                is_hidden = pdfium.FPDFAnnot_GetFlags(annotation) & pdfium.FPDF_ANNOT_FLAG_HIDDEN
                if kind == pdfium.FPDF_ANNOT_WIDGET and not is_hidden and self._book.formenv:
                    text = self._field_value(annotation)
                elif kind == pdfium.FPDF_ANNOT_FILEATTACHMENT:
                    self._embed_from(annotation)
                    text = self._note(annotation, kind)
                elif kind in self._kinds and not is_hidden:
                    text = self._note(annotation, kind)
                else:
                    continue
            finally:
                pdfium.FPDFPage_CloseAnnot(annotation)
            if text := clean(text):
                yield text

    def _field_value(self, annotation: Any) -> str:
        """Return what was filled into a field; of a box that is checked its label, or its name."""
        pdfium, form = self._pdfium, self._book.formenv
        match pdfium.FPDFAnnot_GetFormFieldType(form, annotation):
            case pdfium.FPDF_FORMFIELD_TEXTFIELD | pdfium.FPDF_FORMFIELD_COMBOBOX:
                return self._string(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation)
            case pdfium.FPDF_FORMFIELD_LISTBOX:
                count = max(0, pdfium.FPDFAnnot_GetOptionCount(form, annotation))
                chosen = (n for n in range(count) if pdfium.FPDFAnnot_IsOptionSelected(form, annotation, n))
                return "\n".join(self._string(pdfium.FPDFAnnot_GetOptionLabel, form, annotation, n) for n in chosen)
            case pdfium.FPDF_FORMFIELD_CHECKBOX | pdfium.FPDF_FORMFIELD_RADIOBUTTON:
                if not pdfium.FPDFAnnot_IsChecked(form, annotation):
                    return ""
                names = (pdfium.FPDFAnnot_GetFormFieldAlternateName, pdfium.FPDFAnnot_GetFormFieldName)
                return next((name for get in names if (name := self._string(get, form, annotation))), "")
        return ""

    def _note(self, annotation: Any, kind: int) -> str:
        """Return the words of a note. Those that are only drawn are not read."""
        text = self._string(self._pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents")
        drawn = (self._pdfium.FPDF_ANNOT_FREETEXT, self._pdfium.FPDF_ANNOT_STAMP)
        if not text.strip() and kind in drawn and self._pdfium.FPDFAnnot_GetObjectCount(annotation) > 0:
            self.unread.add("notes")
        return text

    @staticmethod
    def _string(get: Callable[..., int], *arguments: Any) -> str:
        """Call a function of PDFium that writes UTF-16 into a buffer, and returns how many bytes it needs."""
        size = get(*arguments, None, 0)
        if not 2 < size <= _TEXT_BYTES:
            return ""
        buffer = (ctypes.c_ushort * (size // 2 + 1))()
        get(*arguments, buffer, size)
        return bytes(buffer)[: size - 2].decode("utf-16-le", "replace")

    def embedded_files(self) -> list[Attachment]:
        """Return the embedded files, with those that were attached to places on the pages that were read."""
        for index in range(self._book.count_attachments()):
            self._embed(partial(self._book.get_attachment, index))
        return [Attachment(name, data) for name, data in self._files]

    def _embed(self, open_file: Callable[[], Any]) -> None:
        """Add an embedded file, once; one that is damaged, or more than all may have together, is unread."""
        import pypdfium2

        try:
            file, size = open_file(), ctypes.c_ulong()
            self._pdfium.FPDFAttachment_GetFile(file.raw, None, 0, ctypes.byref(size))
            if size.value > self._bytes_left:  # no copy of what is too large
                self.unread.add("embedded files")
                return
            entry = one_line(file.get_name()), bytes(file.get_data())
        except pypdfium2.PdfiumError:
            self.unread.add("embedded files")
            return
        if entry not in self._files:
            self._bytes_left -= len(entry[1])
            self._files[entry] = None

    def _embed_from(self, annotation: Any) -> None:
        import pypdfium2

        file = self._pdfium.FPDFAnnot_GetFileAttachment(annotation)
        if file:
            self._embed(partial(pypdfium2.PdfAttachment, file, self._book))


def _limit_size(page: Any) -> None:
    """Make a page that is too large smaller; its text stays where it is, and is read."""
    width, height = page.get_size()
    if max(width, height) > _PAGE_UNITS:
        box = 0, 0, min(width, _PAGE_UNITS), min(height, _PAGE_UNITS)
        page.set_mediabox(*box)
        page.set_cropbox(*box)


def _iso_date(text: str) -> str:
    """Convert a date as PDF writes it, ``D:20240501120000+02'00'``, to ISO 8601; "" if it is not a date."""
    match = _DATE.match(text.strip())
    if not match:
        return ""
    year, month, day, hour, minute, second, utc, sign, hours, minutes = match.groups()
    iso = f"{year}-{month or '01'}-{day or '01'}T{hour or '00'}:{minute or '00'}:{second or '00'}"
    zone = "+00:00" if utc else f"{sign}{hours}:{minutes or '00'}" if sign else ""
    try:
        return format_time(datetime.fromisoformat(iso + zone))
    except ValueError:
        return ""
