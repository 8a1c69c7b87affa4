"""Continuous batching over the model's slots, with prefix reuse. Plain and synchronous.

A request is a growing list of tokens; a slot is a list of tokens whose keys are cached. Every
step feeds each running request some of the tokens that its slot lacks, and samples one token for
each request that has caught up. Prefill, decode, resuming and recomputing are all this one rule.

Nothing here knows of HTTP or threads: the caller runs one step at a time and changes state only
between steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .decoding import Choice, Decoding, LogprobsMode, Row, choose, score_prompt
from .model import Qwen3, Segment

WORTH_SHARING = 64
"""Prompt tokens; a shorter common prefix is computed again rather than waited for."""


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


@dataclass(eq=False)
class Slot:
    """A sequence of cached tokens; idle ones keep their tokens for prefix reuse."""

    index: int
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    weight_version: int = 0
    """Version of the weights when its first token was cached."""
    session_id: str | None = None
    request: Request | None = None
    last_used: int = 0


@dataclass
class Counters:
    """Totals since the engine started."""

    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that needed no computation."""
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one step and one sequence, in tokens."""

    max_len: int
    """Prompt and output of one request."""
    step_tokens: int = 1024
    """Fed in one step; a long prompt is split so that others keep decoding."""


class Scheduler:
    """Owns the model, its slots and all requests that have not ended."""

    def __init__(
        self,
        model: Qwen3,
        limits: Limits,
        *,
        logprobs_mode: LogprobsMode = "processed_logprobs",
        decode_text: Callable[[Sequence[int]], str],
    ) -> None:
        self.model = model
        self.limits = limits
        self.logprobs_mode = logprobs_mode
        self.counters = Counters()
        self.weight_version = 0
        self.waiting: deque[Request] = deque()
        self._decode_text = decode_text
        self._slots = [Slot(index) for index in range(model.slots)]

    @property
    def running(self) -> list[Request]:
        return [slot.request for slot in self._slots if slot.request is not None]

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(slot.request for slot in self._slots)

    def submit(self, request: Request) -> None:
        self.counters.requests += 1
        request.arrival = self.counters.requests
        self.waiting.append(request)

    def step(self) -> list[Request]:
        """Advance running requests; returns those that ended."""
        self._admit()
        batch = self._plan()
        if not batch:
            return []
        fed = [(slot, request.tokens[len(slot.tokens) :][:count]) for slot, request, count in batch]
        segments = [Segment(slot.index, len(slot.tokens), len(new)) for slot, new in fed]
        hidden = self.model.forward([token for _, new in fed for token in new], segments)
        self.counters.steps += 1
        for slot, new in fed:
            slot.tokens.extend(new)
        self._score_prompts(hidden, batch)
        return self._sample(hidden, batch)

    def abort(self, request: Request) -> bool:
        """End a request with what it has; false when it had ended already."""
        if request.finish_reason is not None:
            return False
        request.finish_reason = "abort"
        if request in self.waiting:
            self.waiting.remove(request)
        self._release(request)
        return True

    def abort_all(self) -> list[Request]:
        ended = [*self.running, *self.waiting]
        for request in ended:
            self.abort(request)
        return ended

    def reset_prefix_cache(self, *, running: bool) -> None:
        """Forget cached prefixes; with ``running``, live requests are recomputed as well."""
        for slot in self._slots:
            if slot.request is None or running:
                slot.tokens.clear()
                slot.weight_version = self.weight_version
                if slot.request is not None and not slot.request.output:
                    slot.request.prompt_scores.clear()

    def finish_session(self, session_id: str) -> None:
        """Free the slots that a finished trajectory leaves behind."""
        for slot in self._slots:
            if slot.session_id == session_id and slot.request is None:
                self._forget(slot)

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Swap all weights. Live requests keep their cached keys, idle prefixes are dropped.

        Raises ``ValueError`` when the weights do not fit; nothing has changed then.
        """
        self.model.load(weights)
        self.weight_version += 1
        self.reset_prefix_cache(running=False)

    def _admit(self) -> None:
        for request in list(self.waiting):
            idle = [slot for slot in self._slots if slot.request is None]
            if not idle:
                return
            if not self._worth_waiting(request):
                self.waiting.remove(request)
                self._place(request, idle)

    def _worth_waiting(self, request: Request) -> bool:
        """Whether a running request is computing a prefix that this one could copy.

        Samples of one task, and tasks with the same tools, begin alike and arrive together.
        """
        shared = max(
            (
                _common_prefix(slot.request.prompt, request.prompt, len(request.prompt) - 1)
                for slot in self._slots
                if slot.request is not None
                and slot.salt == request.salt
                and len(slot.tokens) < len(slot.request.prompt)
            ),
            default=0,
        )
        if shared < WORTH_SHARING or request.decoding.prompt_logprobs is not None:
            return False
        cached = max(self._usable_prefix(slot, request) for slot in self._slots)
        return shared - cached >= WORTH_SHARING

    def _place(self, request: Request, idle: list[Slot]) -> None:
        """Give a request the slot with the longest usable prefix, or a copy of that prefix.

        An idle slot whose whole content is reused is taken over. A prefix of anything else
        (a running request, another session's longer sequence) is copied to the slot that was
        unused for longest, so that its owner keeps it.
        """
        donor = max(self._slots, key=lambda slot: self._usable_prefix(slot, request))
        count = self._usable_prefix(donor, request)
        takes_over = donor.request is None and (
            count == len(donor.tokens) > 0 or donor.session_id == request.session_id is not None
        )
        target = donor if takes_over else min(idle, key=lambda slot: slot.last_used)
        if target is not donor and count:
            self.model.copy_slot(donor.index, target.index, count)
        target.tokens = request.prompt[:count]
        target.salt = request.salt
        target.weight_version = self.weight_version
        target.session_id = request.session_id
        target.request = request
        self.counters.prompt_tokens += len(request.prompt)
        self.counters.reused_tokens += count

    def _usable_prefix(self, slot: Slot, request: Request) -> int:
        """Cached tokens of ``slot`` that begin the prompt. The last prompt token is always fed."""
        if (
            slot.salt != request.salt
            or slot.weight_version != self.weight_version
            or request.decoding.prompt_logprobs is not None
        ):
            return 0
        return _common_prefix(slot.tokens, request.prompt, len(request.prompt) - 1)

    def _plan(self) -> list[tuple[Slot, Request, int]]:
        """Which requests are fed how many tokens; decoding ones first, then by age."""
        lacking = [
            (slot, slot.request, len(slot.request.tokens) - len(slot.tokens))
            for slot in self._slots
            if slot.request is not None
        ]
        lacking.sort(key=lambda entry: (entry[2] > 1, entry[1].arrival))
        budget, batch = self.limits.step_tokens, []
        for slot, request, count in lacking:
            if budget == 0:
                break
            batch.append((slot, request, min(count, budget)))
            budget -= batch[-1][2]
        return batch

    def _score_prompts(
        self, hidden: torch.Tensor, batch: Sequence[tuple[Slot, Request, int]]
    ) -> None:
        offset = 0
        for slot, request, count in batch:
            alternatives = request.decoding.prompt_logprobs
            if alternatives is not None and not request.output:
                first = len(slot.tokens) - count
                following = request.prompt[first + 1 : first + 1 + count]
                # Recomputed prompts (after a cache reset) are scored once.
                if following and first == len(request.prompt_scores):
                    logits = self.model.logits(hidden[offset : offset + len(following)])
                    request.prompt_scores += score_prompt(logits, following, alternatives)
            offset += count

    def _sample(
        self, hidden: torch.Tensor, batch: Sequence[tuple[Slot, Request, int]]
    ) -> list[Request]:
        ends, ready, offset = [], [], -1
        for slot, request, count in batch:
            offset += count
            slot.last_used = self.counters.steps
            if len(slot.tokens) == len(request.tokens):
                ends.append(offset)
                ready.append(request)
        if not ready:
            return []
        rows = [Row(r.decoding, r.rng, self._forbidden(r)) for r in ready]
        choices = choose(self.model.logits(hidden[ends]), rows, self.logprobs_mode)
        for request, choice in zip(ready, choices, strict=True):
            self._append(request, choice)
        ended = [request for request in ready if request.finish_reason is not None]
        for request in ended:
            self._release(request)
        return ended

    def _append(self, request: Request, choice: Choice) -> None:
        if request.weight_version is None:
            request.weight_version = self.weight_version
        request.output.append(choice)
        request.tokens.append(choice.token_id)
        self.counters.sampled_tokens += 1
        decoding = request.decoding
        if choice.token_id in decoding.stop_token_ids:
            request.finish_reason, request.stop_reason = "stop", choice.token_id
        elif not decoding.ignore_eos and choice.token_id in self.model.shape.eos_token_ids:
            request.finish_reason = "stop"
        elif (text := self._stop_string(request)) is not None:
            request.finish_reason, request.stop_reason = "stop", text
        elif (
            len(request.output) >= decoding.max_tokens or len(request.tokens) >= self.limits.max_len
        ):
            request.finish_reason = "length"

    def _stop_string(self, request: Request) -> str | None:
        decoding = request.decoding
        if not decoding.stop or len(request.output) < decoding.min_tokens:
            return None
        # A token is at least one byte, so this many tokens hold the longest stop string.
        window = max(len(text.encode()) for text in decoding.stop) + 1
        tail = self._decode_text(request.output_ids[-window:])
        return next((text for text in decoding.stop if text in tail), None)

    def _forbidden(self, request: Request) -> tuple[int, ...]:
        if len(request.output) >= request.decoding.min_tokens:
            return ()
        eos = () if request.decoding.ignore_eos else self.model.shape.eos_token_ids
        return (*request.decoding.stop_token_ids, *eos)

    def _release(self, request: Request) -> None:
        for slot in self._slots:
            if slot.request is request:
                slot.request = None
                if slot.weight_version != self.weight_version:
                    self._forget(slot)  # keys of several policies in one sequence

    def _forget(self, slot: Slot) -> None:
        slot.tokens.clear()
        slot.session_id = None
        slot.salt = None


def _common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """Length of the common prefix, at most ``limit``, by bisection over slice comparisons."""
    low, high = 0, max(0, min(limit, len(left), len(right)))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
