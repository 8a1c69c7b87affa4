"""Text of the documents that agents produce: plain text, xlsx, docx, pdf.

The files come from an agent, so nothing about them is trusted: sizes are bounded before a
library sees them, and one that cannot be read is described as such. That is a property of the
work, not a fault of the grading.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import PurePosixPath

LARGEST_FILE = 64 * 2**20
"""Bytes; larger files are named, not read."""
LARGEST_UNPACKED = 256 * 2**20
"""Bytes that a zip-based document may unpack to."""
LARGEST_CELL_COUNT = 200_000
TEXT_SAMPLE = 8192


def document_text(name: str, data: bytes) -> str:
    """The text of a document, or a bracketed remark on why there is none."""
    if len(data) > LARGEST_FILE:
        return f"[{len(data)} bytes: too large to show]"
    reader = READERS.get(PurePosixPath(name).suffix.lower())
    if reader is not None:
        try:
            return reader(data)
        except Exception as error:  # the libraries raise anything on a damaged file
            return f"[not a readable {PurePosixPath(name).suffix[1:]} file: {error}]"
    if b"\0" in data[:TEXT_SAMPLE]:
        return f"[binary file of {len(data)} bytes]"
    return data.decode("utf-8", errors="replace")


def _xlsx(data: bytes) -> str:
    import openpyxl

    _check_unpacked_size(data)
    formulas = openpyxl.load_workbook(io.BytesIO(data), read_only=True)
    values = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    lines: list[str] = []
    cells = 0
    for sheet in formulas.worksheets:
        lines.append(f"# sheet {sheet.title}")
        rows = zip(sheet.iter_rows(), values[sheet.title].iter_rows(values_only=True), strict=False)
        for row, computed in rows:
            shown = [
                f"{cell.coordinate}={_cell(cell.value, value)}"
                for cell, value in zip(row, computed, strict=False)
                if cell.value is not None
            ]
            cells += len(row)
            if shown:
                lines.append("\t".join(shown))
            if cells > LARGEST_CELL_COUNT:
                return "\n".join([*lines, f"[cut off after {LARGEST_CELL_COUNT} cells]"])
    return "\n".join(lines)


def _cell(content: object, computed: object) -> str:
    """A formula is shown with the value that was last computed for it, when there is one."""
    if isinstance(content, str) and content.startswith("=") and computed is not None:
        return f"{computed} ({content})"
    return str(content)


def _docx(data: bytes) -> str:
    import docx
    from docx.table import Table

    _check_unpacked_size(data)
    lines: list[str] = []
    for block in docx.Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(block, Table):
            lines += ["\t".join(cell.text for cell in row.cells) for row in block.rows]
        else:
            lines.append(block.text)
    return "\n".join(lines)


def _pdf(data: bytes) -> str:
    import pypdf

    pages = pypdf.PdfReader(io.BytesIO(data)).pages
    return "\n".join(
        f"# page {number}\n{page.extract_text()}" for number, page in enumerate(pages, start=1)
    )


READERS: dict[str, Callable[[bytes], str]] = {
    ".xlsx": _xlsx,
    ".xlsm": _xlsx,
    ".docx": _docx,
    ".pdf": _pdf,
}


def _check_unpacked_size(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > LARGEST_UNPACKED:
        raise ValueError(f"unpacks to {size} bytes")
