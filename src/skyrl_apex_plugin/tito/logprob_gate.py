"""The logprob gate: what the engine reported against what the trainer recomputes.

Both are logprobs of the same tokens under the same weights, so they differ by rounding alone. A
mask or logprobs shifted by one, a lost newline, another temperature or other weights show as a
difference, and the turn where it starts says what to look at. Pure functions over arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from skyrl_apex_hookspecs import TokenError

ROW_FACTOR = 4.0
"""One turn of one row may differ by this many times the limit of a turn position: it has few
tokens, and rounding is noisier on few."""
FEW_TOKENS = 8
"""Turns of a row with fewer tokens count only within their turn position."""
ENOUGH_TOKENS = 32
"""Turn positions with fewer tokens, late ones above all, are given as much more room: logits in
bf16 are rounded to 0.125 from 16 on, so one token alone may be off by more than a limit."""
JUMP = 10.0
JUMP_SHARE = 0.2
"""A turn position is at fault below its limit when its mean is ``JUMP`` times that of an earlier
one and above ``JUMP_SHARE`` of the limit, both over at least :data:`ENOUGH_TOKENS`."""
MASK = "the loss mask"


class LogprobMismatch(TokenError):
    """Stored and recomputed logprobs do not belong to the same tokens and weights."""


@dataclass(frozen=True, slots=True)
class TurnDrift:
    """Absolute differences, in nats, over one turn of one row, or one turn position of all rows.

    ``start`` and ``end`` index the row's columns; for a turn position they are 0.
    """

    turn: int
    row: int | None
    tokens: int
    mean: float
    max: float
    start: int = 0
    end: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class GateReport:
    """Differences over all trained tokens, by turn position, and by turn of each row."""

    tokens: int
    mean: float
    max: float
    positions: tuple[TurnDrift, ...]
    turns: tuple[TurnDrift, ...]

    def require(self, *, mean_limit: float, max_limit: float | None = None) -> None:
        """Raise :class:`LogprobMismatch` for the first turn that is at fault.

        :param mean_limit: largest mean difference of a turn position of at least
            :data:`ENOUGH_TOKENS` tokens, in nats.
        :param max_limit: largest difference of a single token; ``None`` does not look at it.
        """
        fault = self.fault(mean_limit=mean_limit, max_limit=max_limit)
        if fault is not None:
            raise LogprobMismatch(fault)

    def fault(self, *, mean_limit: float, max_limit: float | None = None) -> str | None:
        """What :meth:`require` would raise with, or ``None``."""
        shifted = next((turn for turn in self.turns if turn.cause.startswith(MASK)), None)
        if shifted is not None:
            return self._message(shifted, "tokens are trained on that were not sampled")
        row_limit = ROW_FACTOR * mean_limit
        for index in range(len(self.positions)):
            position = self.positions[index]
            rows = [turn for turn in self.turns if turn.turn == position.turn]
            worst = max(rows, key=lambda turn: turn.mean)
            limit = mean_limit * max(1.0, ENOUGH_TOKENS / position.tokens)
            if position.mean > limit:
                return self._message(worst, f"its limit over all rows is {limit:g}")
            if self._jumps(index, mean_limit):
                return self._message(worst, "earlier turns agree far better")
            if worst.mean > row_limit and worst.tokens >= FEW_TOKENS:
                return self._message(worst, f"the limit for one row is {row_limit:g}")
            if max_limit is not None and position.max > max_limit:
                worst = max(rows, key=lambda turn: turn.max)
                return self._message(worst, f"the limit for one token is {max_limit:g}")
        return None

    def _jumps(self, index: int, mean_limit: float) -> bool:
        position = self.positions[index]
        earlier = [p.mean for p in self.positions[:index] if p.tokens >= ENOUGH_TOKENS]
        return (
            bool(earlier)
            and position.tokens >= ENOUGH_TOKENS
            and position.mean > JUMP_SHARE * mean_limit
            and position.mean > JUMP * max(min(earlier), 1e-6)
        )

    def _message(self, turn: TurnDrift, reason: str) -> str:
        position = next(p for p in self.positions if p.turn == turn.turn)
        cause = f" Likely cause: {turn.cause}." if turn.cause else ""
        return (
            f"turn {turn.turn} of row {turn.row} (columns {turn.start} to {turn.end}): the "
            f"engine's logprobs and the trainer's differ by {turn.mean:.4g} a token, at most "
            f"{turn.max:.4g}; turn {turn.turn} over all rows by {position.mean:.4g}, all turns by "
            f"{self.mean:.4g}; {reason}.{cause} Nothing was trained on this batch."
        )


def compare_logprobs(stored: Any, recomputed: Any, mask: Any) -> GateReport:
    """Compare two arrays of logprobs over the tokens that are trained on.

    :param stored: logprobs as sampled, ``[rows, columns]`` or ``[columns]``; arrays, sequences or
        torch tensors.
    :param recomputed: the trainer's, of the same shape.
    :param mask: 1 on trained tokens; each unbroken run of ones is one turn.
    :raises ValueError: shapes differ, or nothing is trained on.
    """
    import numpy as np

    ours, theirs = _matrix(stored), _matrix(recomputed)
    trained = _matrix(mask) > 0
    if not ours.shape == theirs.shape == trained.shape:
        raise ValueError(f"shapes differ: {ours.shape}, {theirs.shape}, mask {trained.shape}")
    if not trained.any():
        raise ValueError("the mask has no trained token")
    difference = np.abs(ours - theirs)
    turns = []
    for row in range(len(ours)):
        for index, (start, end) in enumerate(turn_spans(trained[row])):
            found = difference[row, start:end]
            turns.append(
                TurnDrift(
                    turn=index,
                    row=row,
                    tokens=end - start,
                    mean=float(found.mean()),
                    max=float(found.max()),
                    start=start,
                    end=end,
                    cause=_cause(ours[row], theirs[row], start, end),
                )
            )
    whole = difference[trained]
    return GateReport(
        tokens=int(trained.sum()),
        mean=float(whole.mean()),
        max=float(whole.max()),
        positions=tuple(_positions(turns)),
        turns=tuple(turns),
    )


def turn_spans(mask: Any) -> list[tuple[int, int]]:
    """``[start, end)`` of each unbroken run of ones."""
    import numpy as np

    flat = np.concatenate(([0], np.asarray(mask, dtype=np.int8) > 0, [0])).astype(np.int8)
    edges = np.flatnonzero(np.diff(flat))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _positions(turns: list[TurnDrift]) -> Iterator[TurnDrift]:
    for index in sorted({turn.turn for turn in turns}):
        same = [turn for turn in turns if turn.turn == index]
        tokens = sum(turn.tokens for turn in same)
        yield TurnDrift(
            turn=index,
            row=None,
            tokens=tokens,
            mean=sum(turn.mean * turn.tokens for turn in same) / tokens,
            max=max(turn.max for turn in same),
        )


def _cause(stored: Any, recomputed: Any, start: int, end: int) -> str:
    """What a turn's difference looks like, if it looks like a shift.

    A stored logprob is 0.0 exactly where nothing was sampled, which tells a shifted mask from
    shifted logprobs.
    """
    before = stored[start - 1] if start > 0 else 0.0
    behind = stored[end] if end < len(stored) else 0.0
    if before != 0.0 and stored[end - 1] == 0.0:
        return f"{MASK} is one token late"
    if behind != 0.0 and stored[start] == 0.0:
        return f"{MASK} is one token early"
    import numpy as np

    plain = float(np.abs(stored[start:end] - recomputed[start:end]).mean())
    for shift, name in ((1, "early"), (-1, "late")):
        low, high = max(start, start - shift), min(end, end - shift)
        if high - low < FEW_TOKENS:
            continue
        moved = np.abs(stored[low:high] - recomputed[low + shift : high + shift]).mean()
        if float(moved) < plain / 4 and plain > 0.01:
            return f"the stored logprobs are one token {name}"
    return ""


def _matrix(values: Any) -> Any:
    """``values`` as a float64 matrix; torch tensors of any type and device are taken."""
    import numpy as np

    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    array = np.asarray(values, dtype=np.float64)
    return array if array.ndim == 2 else array.reshape(1, -1)
