"""Writes a company's documents: csv, xlsx, docx, pdf, mail, a deck and a picture."""

from __future__ import annotations

import csv
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from random import Random

from skyrl_apex_miniworld.company import MONTHS, QUARTERS, Company, Contract

_DATE = datetime(2025, 6, 30, 9, 0, tzinfo=UTC)
_ITEMS = ("audit", "design", "licence", "report", "training")


def write_company(company: Company, root: Path) -> None:
    """Write all documents of ``company`` below ``root``, which is the world's ``/filesystem``."""
    for folder in ("Finance", "Contracts", "Drafts", "Mail", "Sales", "Board"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _write_table(root / "Finance/sales.xlsx", MONTHS, company.sales, "EUR")
    _write_table(root / "Finance/budget.xlsx", MONTHS, company.budget, "EUR")
    _write_table(root / "Finance/assets.xlsx", QUARTERS, company.assets, "kEUR")
    for contract in company.contracts:
        _write_lines(root / "Contracts" / contract.file_name, contract_lines(contract))
        _write_lines(root / "Drafts" / contract.file_name, contract_lines(contract, draft=True))
    _write_orders(root / "Sales/orders.csv", company)
    for number, mail in enumerate(company.mails, 1):
        _write_mail(root / mail_path(number).lstrip("/"), mail.sender, mail.subject, mail.body)
    slides = [{"title": f"{company.name} 2025", "text": "Half-year update"}]
    (root / "Board/update.deck").write_text(json.dumps({"slides": slides}))
    (root / "Board/logo.png").write_bytes(_picture())


def contract_lines(contract: Contract, *, draft: bool = False) -> list[str]:
    """The lines of a contract's document."""
    fee = contract.draft_fee if draft else contract.fee
    return [
        f"{'Draft' if draft else 'Contract'} with {contract.client}",
        f"Fee: {fee} EUR",
        f"Term: {contract.months} months",
    ]


def mail_path(number: int) -> str:
    """Name of the mail with this number, from 1."""
    return f"/Mail/{number:02}.eml"


def sender_address(person: str) -> str:
    """The ``From`` of a person's mails."""
    return f"{person} <post@example.com>"


def _write_table(
    path: Path, columns: Sequence[str], rows: Mapping[str, Mapping[str, int]], unit: str
) -> None:
    import openpyxl

    workbook = openpyxl.Workbook()
    workbook.properties.created = workbook.properties.modified = _DATE.replace(tzinfo=None)
    workbook.remove(workbook.worksheets[0])
    sheet = workbook.create_sheet(path.stem.capitalize())
    sheet.append(["Client", *columns, "Unit"])
    for client, row in rows.items():
        sheet.append([client, *(row[column] for column in columns), unit])
    workbook.save(path)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    if path.suffix == ".docx":
        import docx

        document = docx.Document()
        for line in lines:
            document.add_paragraph(line)
        document.save(str(path))
        return
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_creation_date(_DATE)
    pdf.add_page()
    pdf.set_font("Helvetica", size=12)
    for line in lines:
        pdf.cell(text=line, new_x="LMARGIN", new_y="NEXT")
    pdf.output(str(path))


def _write_orders(path: Path, company: Company) -> None:
    names = [client for client, count in company.orders.items() for _ in range(count)]
    rng = Random(company.name)
    rng.shuffle(names)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Client", "Item"])
        writer.writerows((name, rng.choice(_ITEMS)) for name in names)


def _write_mail(path: Path, sender: str, subject: str, body: str) -> None:
    message = EmailMessage()
    message["From"] = sender_address(sender)
    message["To"] = "office@example.com"
    message["Date"] = format_datetime(_DATE)
    message["Subject"] = subject
    message.set_content(body)
    path.write_bytes(bytes(message))


def _picture() -> bytes:
    """An 8 by 8 PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\x1e\x5a\xa0" * 8) * 8)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
