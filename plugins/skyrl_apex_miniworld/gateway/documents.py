"""Text and tables of office documents.

Reading an xlsx, docx or pdf through its library costs half a second of imports, more than the
rest of a trial's tool calls together. A world is built with those libraries and ships what
they read; a document that still has the bytes it was built with is answered from there. One
that was added or changed is read through the library.
"""

from __future__ import annotations

import csv
import json
import os
import zlib
from typing import Any, NamedTuple

from .filesystem import FileSystem
from .tool import ApplicationError

Rows = list[list[Any]]
OFFICE_SUFFIXES = (".xlsx", ".docx", ".pdf")


class Tab(NamedTuple):
    """One sheet of a workbook."""

    name: str
    rows: Rows


class Documents:
    """Readers over a file system. ``parsed`` is the file written by :func:`write_parsed`."""

    def __init__(self, files: FileSystem, parsed: str | None = None) -> None:
        self._files = files
        self._parsed_path = parsed
        self._parsed: dict[str, Any] | None = None

    def text(self, name: str) -> str:
        """A document's text; of any other file the bytes as UTF-8, faults replaced."""
        path = self._files.existing(name)
        with open(path, "rb") as file:
            data = file.read()
        if not name.lower().endswith((".docx", ".pdf")):
            return data.decode("utf-8", errors="replace")
        known = self._known(data)
        return str(known) if known is not None else _read_text(path)

    def tabs(self, name: str) -> list[Tab]:
        """Tabs of a workbook; a csv file has one. Raises :class:`ApplicationError`."""
        path = self._files.existing(name)
        if name.lower().endswith(".csv"):
            with open(path, encoding="utf-8", newline="") as file:
                return [Tab(os.path.basename(name), [list(row) for row in csv.reader(file)])]
        if not name.lower().endswith(".xlsx"):
            raise ApplicationError(f"not a spreadsheet: {name}")
        with open(path, "rb") as file:
            known = self._known(file.read())
        if known is not None:
            return [Tab(tab, rows) for tab, rows in known]
        return _read_workbook(path)

    def _known(self, data: bytes) -> Any:
        if self._parsed is None:
            self._parsed = {}
            if self._parsed_path and os.path.exists(self._parsed_path):
                with open(self._parsed_path, encoding="utf-8") as file:
                    self._parsed = json.load(file)
        return self._parsed.get(_fingerprint(data))


def write_parsed(root: str, target: str) -> None:
    """Read every office document below ``root`` with its library; write the result as JSON."""
    parsed: dict[str, Any] = {}
    files = FileSystem(root)
    for name in files.files():
        if not name.lower().endswith(OFFICE_SUFFIXES):
            continue
        path = files.real(name)
        with open(path, "rb") as file:
            key = _fingerprint(file.read())
        parsed[key] = _read_workbook(path) if name.lower().endswith(".xlsx") else _read_text(path)
    with open(target, "w", encoding="utf-8") as file:
        json.dump(parsed, file, ensure_ascii=False, separators=(",", ":"))


def _fingerprint(data: bytes) -> str:
    return f"{len(data)}-{zlib.crc32(data):08x}"


def _read_workbook(path: str) -> list[Tab]:
    import openpyxl

    workbook = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        return [
            Tab(sheet.title, [list(row) for row in sheet.iter_rows(values_only=True)])
            for sheet in workbook.worksheets
        ]
    finally:
        workbook.close()


def _read_text(path: str) -> str:
    if path.lower().endswith(".docx"):
        import docx

        return "\n".join(paragraph.text for paragraph in docx.Document(path).paragraphs)
    import pypdf

    return "\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
