"""The scripted expert: what it says in each turn, and what the world would answer.

:class:`Company` knows everything that the tools can show, so an episode is played without
starting a gateway. A test holds :func:`observe` to the answers of the gateway itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from skyrl_apex_miniworld.company import Company
from skyrl_apex_miniworld.paperwork import contract_lines, mail_path, sender_address
from skyrl_apex_miniworld.questions import (
    ASSETS,
    BUDGET,
    FILES,
    MAIL,
    SALES,
    SHEETS,
    SHELL,
    Call,
    Plan,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says, and the observation that follows (``None`` after the answer)."""

    text: str
    call: Call | None
    observation: str | None


def play(company: Company, plan: Plan) -> Iterator[Turn]:
    """The turns of a plan: one for each call, and the answer."""
    for call in plan.calls:
        yield Turn(call_text(call), call, observe(company, call))
    yield Turn(plan.answer, None, None)


def call_text(call: Call) -> str:
    """A tool call in the text form of the Qwen3 family."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{call.tool}", "arguments": {arguments}}}\n</tool_call>'


def observe(company: Company, call: Call) -> str:
    """What the gateway answers to one of the calls that plans are made of."""
    arguments = call.arguments
    if call.tool == SHEETS:
        return _lookup(company, arguments["file_path"], arguments["row"], arguments["column"])
    if call.tool == MAIL:
        return _search(company, arguments["text"])
    if call.tool == SHELL:
        return _shell(company, arguments["code"])
    if call.tool == FILES:
        return _read(company, arguments["path"])
    raise ValueError(f"no plan calls {call.tool!r}")


def _lookup(company: Company, path: str, row: str, column: str) -> str:
    tables = {
        SALES: (company.sales, "EUR"),
        BUDGET: (company.budget, "EUR"),
        ASSETS: (company.assets, "kEUR"),
    }
    if path not in tables:
        return _not_found(path)
    table, unit = tables[path]
    return _json({"tabs": None, "rows": None, "value": table[row][column], "unit": unit})


def _search(company: Company, text: str) -> str:
    heads = [
        {"path": mail_path(number), "from": sender_address(mail.sender), "subject": mail.subject}
        for number, mail in enumerate(company.mails, 1)
        if text.lower() in f"{sender_address(mail.sender)}\n{mail.subject}\n{mail.body}".lower()
    ]
    return _json({"mails": heads, "from": None, "subject": None, "body": None, "attachments": None})


def _shell(company: Company, code: str) -> str:
    if code.startswith("wc "):
        count = sum(company.orders.values()) + 1
    else:
        count = company.orders[code.split()[2]]
    return _json({"output": str(count), "stderr": None, "exit_code": 0})


def _read(company: Company, path: str) -> str:
    folder, _, file_name = path.rpartition("/")
    for contract in company.contracts:
        if contract.file_name == file_name and folder in ("/Contracts", "/Drafts"):
            return "\n".join(contract_lines(contract, draft=folder == "/Drafts"))
    return _not_found(path)


def _not_found(path: str) -> str:
    return _json({"error": f"file not found: {path}"})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
