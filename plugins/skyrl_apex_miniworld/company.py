"""A simulated company, drawn from a seed: clients, people, figures, contracts, mails, orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun")
QUARTERS = ("Q1", "Q2", "Q3", "Q4")

RESERVED_DIVISOR, RESERVED_REMAINDER = 7, 3
"""Every figure of a held-out company leaves this remainder, no figure of any other one does: a
held-out answer cannot occur in training, whatever is drawn."""

_HEAD_WORDS = (
    "Bor Cal Dun Ebr Fal Gar Hol Ing Jor Kel Lan Mir Nor Orl Pel Quin Ros Sal Tor Ulm Vel Wes "
    "Yor Zan"
)
_TAIL_WORDS = "acis ando berg dale elis enta fort holm inex ivo land mont nova oria quist tech"
_FIRST_WORDS = (
    "Ada Bela Cora Dario Edda Finn Greta Hugo Ines Jonas Kira Leon Mona Nils Olga Pavel Rosa "
    "Sven Tilda Udo Vera Wim"
)
_HEADS, _TAILS, _FIRST = _HEAD_WORDS.split(), _TAIL_WORDS.split(), _FIRST_WORDS.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A signed contract and the draft before it."""

    file_name: str
    number: int
    """Four digits in the mail that announces the contract; no fee, but it looks like one."""
    client: str
    fee: int
    draft_fee: int
    months: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A mail to the company."""

    sender: str
    subject: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """All that there is to know about a company; documents and tasks are made from it."""

    name: str
    clients: tuple[str, ...]
    sales: dict[str, dict[str, int]]
    """Client, month, EUR."""
    budget: dict[str, dict[str, int]]
    assets: dict[str, dict[str, int]]
    """Client, quarter, thousand EUR."""
    orders: dict[str, int]
    """Client, number of orders."""
    contracts: tuple[Contract, ...]
    mails: tuple[Mail, ...]
    offers: dict[str, tuple[int, int]]
    """Person, amount offered, amount confirmed: two mails."""
    referrals: dict[str, Contract]
    """Person, contract that their mail names."""


def draw_company(seed: str, *, held_out: bool = False, size: int = 8) -> Company:
    """A company of ``size`` clients. Equal seeds give equal companies."""
    rng = Random(seed)
    figure = _figures(rng, held_out)
    clients = tuple(_distinct(rng, _client_name, size))
    people = _distinct(rng, _person_name, 2 * size)
    contracts = tuple(_contract(rng, figure, client) for client in clients)
    offers = {person: (figure(10000, 99999), figure(10000, 99999)) for person in people[:size]}
    referrals = dict(zip(people[size:], rng.sample(contracts, size), strict=True))
    mails = [mail for person in offers for mail in _offer_mails(person, *offers[person])]
    mails += [_referral_mail(person, contract) for person, contract in referrals.items()]
    rng.shuffle(mails)
    return Company(
        name=_client_name(rng),
        clients=clients,
        sales={client: {month: figure(1000, 9999) for month in MONTHS} for client in clients},
        budget={client: {month: figure(1000, 9999) for month in MONTHS} for client in clients},
        assets={client: {each: figure(1000, 9999) for each in QUARTERS} for client in clients},
        orders={client: figure(100, 999) for client in clients},
        contracts=contracts,
        mails=tuple(mails),
        offers=offers,
        referrals=referrals,
    )


def is_reserved(figure: int) -> bool:
    """Whether a figure is one that only held-out companies have."""
    return figure % RESERVED_DIVISOR == RESERVED_REMAINDER


def _figures(rng: Random, held_out: bool) -> Callable[[int, int], int]:
    """Draws figures that have not been drawn before from an inclusive range."""
    drawn: set[int] = set()

    def figure(low: int, high: int) -> int:
        while True:
            value = rng.randint(low, high)
            if is_reserved(value) == held_out and value not in drawn:
                drawn.add(value)
                return value

    return figure


def _distinct(rng: Random, draw: Callable[[Random], str], count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[draw(rng)] = None
    return list(names)


def _client_name(rng: Random) -> str:
    return rng.choice(_HEADS) + rng.choice(_TAILS)


def _person_name(rng: Random) -> str:
    return f"{rng.choice(_FIRST)} {_client_name(rng)}"


def _contract(rng: Random, figure: Callable[[int, int], int], client: str) -> Contract:
    suffix = rng.choice(("docx", "pdf"))
    return Contract(
        file_name=f"{client}.{suffix}",
        number=figure(1000, 9999),
        client=client,
        fee=figure(10000, 99999),
        draft_fee=figure(10000, 99999),
        months=rng.choice((12, 24, 36)),
    )


def _offer_mails(person: str, offered: int, confirmed: int) -> tuple[Mail, Mail]:
    return (
        Mail(sender=person, subject=f"Offer {offered} EUR", body="Please find our offer."),
        Mail(sender=person, subject=f"Confirmed {confirmed} EUR", body="We confirm the amount."),
    )


def _referral_mail(person: str, contract: Contract) -> Mail:
    return Mail(
        sender=person,
        subject=f"Signed {contract.file_name}, number {contract.number}",
        body=f"The contract with {contract.client} is signed.",
    )
