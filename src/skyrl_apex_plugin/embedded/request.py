"""What the engine is asked for, and how far it has come."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .decoding import Choice, Decoding


@dataclass(eq=False, kw_only=True)
class Request:
    """One completion in the making."""

    prompt: list[int]
    decoding: Decoding
    salt: str | None = None
    """Prefixes are shared only between requests of equal salt."""
    session_id: str | None = None
    output: list[Choice] = field(default_factory=list)
    prompt_scores: list[Choice] = field(default_factory=list)
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort`` once it has ended."""
    stop_reason: int | str | None = None
    """The stop token or string that ended it; ``None`` for the model's own end of text."""
    weight_version: int | None = None
    """Version of the weights that sampled the first token."""
    arrival: int = field(init=False, default=0)
    rng: random.Random = field(init=False)
    tokens: list[int] = field(init=False)
    """Prompt and output so far."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.decoding.seed)
        self.tokens = list(self.prompt)

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[len(self.prompt) :]
