"""Questions about a company, of graded difficulty, with the way to their answers.

A question of each kind comes with the *plan* of an expert and with a *trap*: a plan that looks
as good and ends in a wrong figure. A plan is a list of tool calls; the answer is read from the
last observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from skyrl_apex_miniworld.company import MONTHS, QUARTERS, Company, Contract

SALES, BUDGET, ASSETS = "/Finance/sales.xlsx", "/Finance/budget.xlsx", "/Finance/assets.xlsx"
SHEETS, MAIL, SHELL, FILES = (
    "sheets_spreadsheet",
    "mail_mailbox",
    "shell_code_exec",
    "files_read_file",
)
"""The tools that tasks show, under their public names."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as a model writes it: without the envelope."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls in order, and the answer they lead to."""

    calls: tuple[Call, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with its right plan and a wrong one.

    ``level`` is 1 (one obvious call) to 4 (several calls that depend on each other).
    """

    kind: str
    level: int
    text: str
    plan: Plan
    trap: Plan

    @property
    def answer(self) -> str:
        return self.plan.answer


def ask(company: Company, kind: str, rng: Random) -> Iterator[Question]:
    """All questions of a kind about ``company``, in random order."""
    level, make = KINDS[kind]
    drafts = list(make(company))
    rng.shuffle(drafts)
    for wordings, plan, trap in drafts:
        text = rng.choice(wordings)
        yield Question(kind=kind, level=level, text=text, plan=plan, trap=trap)


Draft = tuple[tuple[str, ...], Plan, Plan]


def _sales(company: Company) -> Iterator[Draft]:
    for client in company.clients:
        for month in MONTHS:
            right = _cell(SALES, client, month, company.sales[client][month])
            wrong = _cell(BUDGET, client, month, company.budget[client][month])
            yield (
                (
                    f"What were the sales of {client} in {month}?",
                    f"How much did {client} buy in {month}?",
                ),
                right,
                wrong,
            )


def _budget(company: Company) -> Iterator[Draft]:
    for client in company.clients:
        for month in MONTHS:
            right = _cell(BUDGET, client, month, company.budget[client][month])
            wrong = _cell(SALES, client, month, company.sales[client][month])
            yield (
                (
                    f"What was planned for {client} in {month}?",
                    f"What is the budget of {client} in {month}?",
                ),
                right,
                wrong,
            )


def _assets(company: Company) -> Iterator[Draft]:
    for client in company.clients:
        for quarter in QUARTERS:
            thousands = company.assets[client][quarter]
            call = _cell(ASSETS, client, quarter, thousands).calls
            yield (
                (
                    f"What are the assets of {client} in {quarter} in EUR?",
                    f"How many EUR of assets had {client} in {quarter}?",
                ),
                Plan(call, f"{thousands}000"),
                Plan(call, str(thousands)),
            )


def _confirmed(company: Company) -> Iterator[Draft]:
    for person, (offered, confirmed) in company.offers.items():
        call = (_search(person),)
        yield (
            (
                f"Which amount did {person} confirm?",
                f"How much did {person} agree to?",
            ),
            Plan(call, str(confirmed)),
            Plan(call, str(offered)),
        )


def _orders(company: Company) -> Iterator[Draft]:
    total = sum(company.orders.values()) + 1
    for client, count in company.orders.items():
        yield (
            (
                f"How many orders came from {client}?",
                f"How often did {client} order?",
            ),
            Plan((_shell(f"grep -c {client} Sales/orders.csv"),), str(count)),
            Plan((_shell("wc -l < Sales/orders.csv"),), str(total)),
        )


def _fee(company: Company) -> Iterator[Draft]:
    for contract in company.contracts:
        yield (
            (
                f"What is the signed fee in {contract.file_name}?",
                f"Which fee was agreed in {contract.file_name}?",
            ),
            _signed(contract),
            Plan((_read(f"/Drafts/{contract.file_name}"),), str(contract.draft_fee)),
        )


def _referral(company: Company) -> Iterator[Draft]:
    for person, contract in company.referrals.items():
        search = _search(person)
        yield (
            (
                f"What is due under the contract from {person}?",
                f"What does the contract from {person} cost?",
            ),
            Plan((search, *_signed(contract).calls), str(contract.fee)),
            Plan((search,), str(contract.number)),
        )


KINDS: dict[str, tuple[int, Callable[[Company], Iterator[Draft]]]] = {
    "sales": (1, _sales),
    "confirmed": (1, _confirmed),
    "budget": (2, _budget),
    "orders": (2, _orders),
    "fee": (2, _fee),
    "assets": (3, _assets),
    "referral": (4, _referral),
}
"""Kind of question to its level and to what drafts it."""


def _cell(path: str, row: str, column: str, value: int) -> Plan:
    request = {"action": "lookup", "file_path": path, "row": row, "column": column}
    return Plan((Call(SHEETS, request),), str(value))


def _search(text: str) -> Call:
    return Call(MAIL, {"action": "search", "text": text})


def _shell(code: str) -> Call:
    return Call(SHELL, {"code": code})


def _read(path: str) -> Call:
    return Call(FILES, {"path": path})


def _signed(contract: Contract) -> Plan:
    return Plan((_read(f"/Contracts/{contract.file_name}"),), str(contract.fee))
