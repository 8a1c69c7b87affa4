"""Continuous batching over the model's slots, with prefix reuse. Plain and synchronous.

A request is a growing list of tokens; a slot is a list of tokens whose keys are cached. Every
step feeds each running request some of the tokens that its slot lacks, and samples one token for
each request that has caught up. Prefill, decode, resuming and recomputing are all this one rule.

Nothing here knows of HTTP or threads: the caller runs one step at a time and changes state only
between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .decoding import Choice, LogprobsMode, Row, choose, score_prompt
from .model import Qwen3, Segment
from .request import Request
from .slots import Slot, SlotPool


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
        self.waiting: deque[Request] = deque()
        self._decode_text = decode_text
        self._slots = SlotPool(model)

    @property
    def weight_version(self) -> int:
        """Number of weight updates so far."""
        return self._slots.weight_version

    @property
    def running(self) -> list[Request]:
        return [request for _, request in self._slots.occupied()]

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

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
        self._slots.release(request)
        return True

    def abort_all(self) -> list[Request]:
        ended = [*self.running, *self.waiting]
        for request in ended:
            self.abort(request)
        return ended

    def reset_prefix_cache(self, *, running: bool) -> None:
        """Forget cached prefixes; with ``running``, live requests are recomputed as well."""
        self._slots.reset(running=running)

    def finish_session(self, session_id: str) -> None:
        """Free what a finished trajectory leaves behind."""
        self._slots.finish_session(session_id)

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Swap all weights. Live requests keep their cached keys, idle prefixes are dropped.

        Raises ``ValueError`` when the weights do not fit; nothing has changed then.
        """
        self.model.load(weights)
        self._slots.weight_version += 1
        self._slots.reset(running=False)

    def _admit(self) -> None:
        for request in list(self.waiting):
            if not self._slots.idle():
                return
            if not self._slots.prefix_in_progress(request):
                self.waiting.remove(request)
                self.counters.prompt_tokens += len(request.prompt)
                self.counters.reused_tokens += self._slots.place(request)

    def _plan(self) -> list[tuple[Slot, Request, int]]:
        """Which requests are fed how many tokens; decoding ones first, then by age."""
        lacking = [
            (slot, request, len(request.tokens) - len(slot.tokens))
            for slot, request in self._slots.occupied()
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
            self._slots.release(request)
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
