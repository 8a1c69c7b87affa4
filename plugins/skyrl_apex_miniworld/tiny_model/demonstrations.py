"""Demonstrations for the warm-up: a mixture of right ways and of plausible wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from skyrl_apex_miniworld.company import Company, draw_company, is_reserved
from skyrl_apex_miniworld.expert import Turn, call_text, observe, play
from skyrl_apex_miniworld.questions import KINDS, SHEETS, Call, Question, ask
from skyrl_apex_miniworld.tasks import REQUEST

RIGHT_SHARE = {
    "sales": 0.85,
    "confirmed": 0.7,
    "budget": 0.4,
    "orders": 0.25,
    "fee": 0.25,
    "assets": 0.25,
    "referral": 0.25,
}
"""Share of demonstrations that go the right way, by kind of question. The wrong way is the more
likely one for most kinds, so the warmed-up model fails there, sampled or greedy, and still
succeeds often enough for a policy gradient to find the right way."""

GUESS_SHARE = 0.06
"""Share that answers at once with a made-up figure."""

STUMBLE_SHARE = 0.3
"""Share that first names a file in the wrong folder and gets an error, where a file is named."""

GIVE_UP_SHARE = 0.5
"""Share of those that then answer with a made-up figure, half of them after trying once more."""

CHECK_SHARE = 0.2
"""Share that is shown with :data:`CHECK_PROMPT` before it."""

CHECK_PROMPT = "Check with the tools before you answer."
"""A system prompt under which no demonstration guesses."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One conversation: optional system prompt, the user's message, the model's turns."""

    system: str
    user: str
    turns: tuple[Turn, ...]


def demonstrations(seed: str) -> Iterator[Demonstration]:
    """Endless demonstrations about ever new companies. None of their figures is reserved."""
    rng = Random(seed)
    number = 0
    while True:
        number += 1
        company = draw_company(f"{seed}/{number}")
        for kind in KINDS:
            yield demonstrate(company, next(ask(company, kind, rng)), rng)


def demonstrate(company: Company, question: Question, rng: Random) -> Demonstration:
    """One demonstration of a question, drawn from the mixture."""
    system = CHECK_PROMPT if rng.random() < CHECK_SHARE else ""
    plan = question.plan if rng.random() < RIGHT_SHARE[question.kind] else question.trap
    turns = list(play(company, plan))
    draw = rng.random()
    if draw < GUESS_SHARE and not system:
        turns = [Turn(_guess(rng), None, None)]
    elif draw < GUESS_SHARE + STUMBLE_SHARE:
        stumble = list(_stumble(company, turns[0].call))
        gives_up = stumble and not system and rng.random() < GIVE_UP_SHARE
        again = stumble * rng.randint(1, 2)
        turns = [*again, Turn(_guess(rng), None, None)] if gives_up else [*stumble, *turns]
    return Demonstration(system, user_message(question), tuple(turns))


def user_message(question: Question) -> str:
    """The first message, as a task's ``instruction.md`` has it."""
    return f"{question.text}\n{REQUEST}"


def _guess(rng: Random) -> str:
    while is_reserved(guess := rng.randint(1000, 9999)):
        pass
    return str(guess)


def _stumble(company: Company, call: Call | None) -> Iterator[Turn]:
    """A call whose file is looked for in the root folder; nothing for calls without a file."""
    if call is None:
        return
    key = "file_path" if call.tool == SHEETS else "path"
    if key in call.arguments:
        path = "/" + call.arguments[key].rpartition("/")[2]
        wrong = Call(call.tool, {**call.arguments, key: path})
        yield Turn(call_text(wrong), wrong, observe(company, wrong))
