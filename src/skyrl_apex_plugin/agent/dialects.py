"""How services that complete token IDs differ, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skyrl_apex_hookspecs import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One service's form of ``/v1/completions`` with token IDs.

    ``token_ids`` and ``logprobs`` are paths inside a choice of the answer.
    """

    name: str
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every request carries."""
    session_header: str = "X-Session-ID"
    """Header that keeps a trajectory on one replica, where its prefix is cached."""
    session_field: str | None = None
    salt_field: str | None = None
    takes_stop_ids: bool = True
    """Otherwise the model's own end-of-turn token stops a turn."""
    sends_neutral: bool = True
    """Whether ``top_k=-1``, ``min_p=0`` and ``repetition_penalty=1`` are sent: vllm otherwise takes
    what the model's ``generation_config.json`` recommends. Some services refuse the values."""
    token_ids: tuple[str, ...] = ("token_ids",)
    logprobs: tuple[str, ...] = ("logprobs", "token_logprobs")
    spelled_ids: str | None = None
    """What stands before each ID in ``logprobs.tokens``, where a service can write IDs there."""
    lean: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a session's later requests, once an answer has shown such IDs: the prompt's echo,
    which costs as much as the prompt, is needed only once."""
    has_sessions: bool = False
    """Whether ``/finish_session`` is worth a request."""

    def parameters(self, params: SamplingParams) -> dict[str, Any]:
        """The sampling parameters as body fields, ``max_tokens`` left out."""
        fields: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p, "n": 1}
        if self.sends_neutral or params.top_k > 0:
            fields["top_k"] = params.top_k
        if self.sends_neutral or params.min_p > 0:
            fields["min_p"] = params.min_p
        if self.sends_neutral:
            fields["repetition_penalty"] = 1.0
        if self.takes_stop_ids:
            fields["stop_token_ids"] = list(params.stop_token_ids)
        if params.seed is not None:
            fields["seed"] = params.seed
        return fields


VLLM = Dialect(
    name="vllm",
    body={
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
    },
    spelled_ids="token_id:",
    lean={"return_token_ids": False},
    session_field="session_id",
    salt_field="cache_salt",
    has_sessions=True,
)
FIREWORKS = Dialect(
    name="fireworks",
    body={"logprobs": 1, "echo": False},
    session_header="x-session-affinity",
    salt_field="prompt_cache_isolation_key",
    takes_stop_ids=False,
    sends_neutral=False,
    token_ids=("logprobs", "token_ids"),
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (VLLM, FIREWORKS)}


def ids_of(choice: Mapping[str, Any], dialect: Dialect) -> list[int] | None:
    """The sampled token IDs of a choice, or ``None`` where it has none."""
    ids = inside(choice, dialect.token_ids)
    if isinstance(ids, list):
        return ids
    return spelled_ids(choice, dialect)


def spelled_ids(choice: Mapping[str, Any], dialect: Dialect) -> list[int] | None:
    """The IDs that stand as ``token_id:N`` in ``logprobs.tokens``."""
    prefix, tokens = dialect.spelled_ids, inside(choice, ("logprobs", "tokens"))
    if prefix is None or not isinstance(tokens, list):
        return None
    if not all(isinstance(token, str) and token.startswith(prefix) for token in tokens):
        return None
    return [int(token[len(prefix) :]) for token in tokens]


def inside(choice: Any, path: tuple[str, ...]) -> Any:
    """What ``path`` leads to in an answer, or ``None``."""
    for key in path:
        choice = choice.get(key) if isinstance(choice, Mapping) else None
    return choice
