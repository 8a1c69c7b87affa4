"""The cached sequences: who holds which slot, and whose prefix can be used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .model import Qwen3
from .request import Request

WORTH_SHARING = 64
"""Prompt tokens; a shorter common prefix is computed again rather than waited for."""


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


class SlotPool:
    """All slots of a model. A cached prefix serves requests of its salt and its weights only."""

    def __init__(self, model: Qwen3) -> None:
        self._model = model
        self._slots = [Slot(index) for index in range(model.slots)]
        self.weight_version = 0

    def occupied(self) -> list[tuple[Slot, Request]]:
        return [(slot, slot.request) for slot in self._slots if slot.request is not None]

    def idle(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.request is None]

    def place(self, request: Request) -> int:
        """Give a request an idle slot; returns how many tokens of its prompt are in it already.

        An idle slot whose whole content is reused is taken over. A prefix of anything else
        (a running request, another session's longer sequence) is copied to the slot that was
        unused for longest, so that its owner keeps it.
        """
        donor = max(self._slots, key=lambda slot: self._usable_prefix(slot, request))
        count = self._usable_prefix(donor, request)
        takes_over = donor.request is None and (
            count == len(donor.tokens) > 0 or donor.session_id == request.session_id is not None
        )
        oldest = min(self.idle(), key=lambda slot: (bool(slot.tokens), slot.last_used))
        target = donor if takes_over else oldest
        if target is not donor and count:
            self._model.copy_slot(donor.index, target.index, count)
        target.tokens = request.prompt[:count]
        target.salt = request.salt
        target.weight_version = self.weight_version
        target.session_id = request.session_id
        target.request = request
        return count

    def prefix_in_progress(self, request: Request) -> bool:
        """Whether a running request is computing a prefix that this one could soon copy.

        Samples of one task, and tasks with the same tools, begin alike and arrive together.
        """
        if request.decoding.prompt_logprobs is not None:
            return False
        shared = max(
            (
                _common_prefix(running.prompt, request.prompt, len(request.prompt) - 1)
                for slot, running in self.occupied()
                if slot.salt == request.salt and len(slot.tokens) < len(running.prompt)
            ),
            default=0,
        )
        cached = max(self._usable_prefix(slot, request) for slot in self._slots)
        return shared - cached >= WORTH_SHARING

    def release(self, request: Request) -> None:
        """A request has ended; its tokens stay for the next turn if one policy computed them."""
        for slot, running in self.occupied():
            if running is request:
                slot.request = None
                if slot.weight_version != self.weight_version:
                    _forget(slot)

    def reset(self, *, running: bool) -> None:
        """Forget cached prefixes; with ``running``, live requests are recomputed as well."""
        for slot in self.idle():
            _forget(slot)
        for slot, request in self.occupied() if running else []:
            slot.tokens.clear()
            slot.weight_version = self.weight_version
            if not request.output:
                request.prompt_scores.clear()

    def finish_session(self, session_id: str) -> None:
        """Free what a finished trajectory leaves behind."""
        for slot in self.idle():
            if slot.session_id == session_id:
                _forget(slot)

    def _usable_prefix(self, slot: Slot, request: Request) -> int:
        """Cached tokens of ``slot`` that begin the prompt. The last prompt token is always fed."""
        if (
            slot.salt != request.salt
            or slot.weight_version != self.weight_version
            or request.decoding.prompt_logprobs is not None
        ):
            return 0
        return _common_prefix(slot.tokens, request.prompt, len(request.prompt) - 1)


def _forget(slot: Slot) -> None:
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
