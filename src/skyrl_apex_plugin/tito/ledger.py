"""The token ledger: one append-only stream of token IDs with its loss mask and logprobs."""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, Self

from skyrl_apex_hookspecs import Outcome, Task, TokenError, ToolCall, Trajectory, Turn, Verdict
from skyrl_apex_plugin.files import write_atomic

SCHEMA = 1
MAGIC = b"APEXTOKS"
HIGHEST_LOGPROB = 1e-3
"""Logprobs are at most 0; engines round a probability of 1 to slightly above it."""


class LedgerError(TokenError):
    """An append, or a file, breaks an invariant of the ledger. Nothing was appended."""


class Decodes(Protocol):
    """What a readable rendering needs of a tokenizer."""

    def decode(self, token_ids: list[int]) -> str: ...


class TokenLedger:
    """The tokens of one trajectory: prompt, then turns, each followed by an observation.

    Nine bytes a token (ID 4, logprob 4, mask 1); turns are offsets, never copies. Every append is
    checked: equal lengths of all three arrays, mask 1 exactly on sampled IDs, logprob 0.0 wherever
    the mask is 0, finite logprobs, and turns that alternate with observations. A running checksum
    proves, whenever the stream leaves the ledger, that nobody changed an earlier part of it.

    :param prompt_ids: the first prompt, generation prompt included; not empty.
    :raises LedgerError: see above.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self._tokens: array[int] = array("i")
        self._logprobs: array[float] = array("f")
        self._mask = bytearray()
        self._turns: list[Turn] = []
        self._checksum = 0
        prompt = _ids(prompt_ids, "the first prompt")
        self._append(prompt, array("f", bytes(4 * len(prompt))), mask=0)
        self._prompt_length = len(prompt)

    @property
    def tokens(self) -> array[int]:
        """All token IDs. The ledger's own array: read it, do not change it."""
        return self._tokens

    @property
    def logprobs(self) -> array[float]:
        """Natural logprobs as sampled, 0.0 on everything that was not. As long as ``tokens``."""
        return self._logprobs

    @property
    def loss_mask(self) -> bytes:
        """1 on sampled tokens, 0 elsewhere. A copy, as long as ``tokens``."""
        return bytes(self._mask)

    @property
    def prompt_length(self) -> int:
        return self._prompt_length

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    def __len__(self) -> int:
        return len(self._tokens)

    def append_sampled(
        self,
        token_ids: Iterable[int],
        logprobs: Iterable[float],
        *,
        finish_reason: str,
        model_seconds: float = 0.0,
        weight_version: int | None = None,
    ) -> Turn:
        """Append what the model sampled and open a turn.

        :raises LedgerError: no tokens, as many logprobs as tokens not given, a logprob that is not
            a finite number below 0, or a turn that follows another without an observation.
        """
        where = f"turn {len(self._turns)}"
        if self._turns and self._turns[-1].observation_end is None:
            raise LedgerError(f"{where}: no observation stands between it and the turn before")
        ids = _ids(token_ids, where)
        values = _logprobs(logprobs, len(ids), where)
        start = len(self._tokens)
        self._append(ids, values, mask=1)
        turn = Turn(
            index=len(self._turns),
            start=start,
            end=len(self._tokens),
            finish_reason=finish_reason,
            model_seconds=model_seconds,
            weight_version=weight_version,
        )
        self._turns.append(turn)
        return turn

    def append_observation(self, token_ids: Iterable[int]) -> None:
        """Append what follows the open turn, up to where the next one starts; closes the turn.

        :raises LedgerError: no tokens, or no open turn.
        """
        if not self._turns or self._turns[-1].observation_end is not None:
            raise LedgerError("an observation needs a turn that it follows")
        ids = _ids(token_ids, f"the observation after turn {len(self._turns) - 1}")
        self._append(ids, array("f", bytes(4 * len(ids))), mask=0)
        self._turns[-1] = replace(self._turns[-1], observation_end=len(self._tokens))

    def annotate_turn(
        self, *, calls: Sequence[ToolCall] = (), tool_seconds: float = 0.0, malformed: bool = False
    ) -> Turn:
        """Add to the last turn what came of it. Raises :class:`LedgerError` without a turn."""
        if not self._turns:
            raise LedgerError("there is no turn to annotate")
        self._turns[-1] = replace(
            self._turns[-1], calls=tuple(calls), tool_seconds=tool_seconds, malformed=malformed
        )
        return self._turns[-1]

    def to_trajectory(
        self,
        *,
        task: Task,
        outcome: Outcome,
        answer: str | None = None,
        verdict: Verdict | None = None,
        max_context: int | None = None,
    ) -> Trajectory:
        """The finished rollout, with copies of the arrays.

        :raises LedgerError: the stream was changed from outside.
        """
        self.check()
        return Trajectory(
            task=task,
            outcome=outcome,
            tokens=self._tokens[:],
            logprobs=self._logprobs[:],
            loss_mask=bytes(self._mask),
            prompt_length=self._prompt_length,
            turns=self.turns,
            answer=answer,
            verdict=verdict,
            max_context=max_context,
        )

    def save(self, path: Path) -> None:
        """Write the ledger to one file, atomically.

        ``APEXTOKS``, the header's length (32 bits), a JSON header (schema, counts, checksum,
        turns), then token IDs (32-bit), logprobs (32-bit float) and loss mask (a byte each), all
        little-endian.

        :raises LedgerError: the stream was changed from outside.
        """
        self.check()
        header = json.dumps(
            {
                "schema": SCHEMA,
                "tokens": len(self._tokens),
                "prompt_length": self._prompt_length,
                "checksum": self._checksum,
                "turns": [asdict(turn) for turn in self._turns],
            },
            ensure_ascii=False,
            separators=(",", ":"),
            default=str,
        ).encode("utf-8", errors="replace")
        parts = [MAGIC, struct.pack("<I", len(header)), header]
        parts += [_little(self._tokens), _little(self._logprobs), bytes(self._mask)]
        write_atomic(path, b"".join(parts))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a ledger and check it whole.

        :raises LedgerError: not a ledger, a schema other than 1, or contents that break an
            invariant; names the file. :raises OSError: the file cannot be read.
        """
        try:
            return cls._parse(Path(path).read_bytes())
        except (ValueError, TypeError, KeyError, struct.error, LedgerError) as error:
            raise LedgerError(f"{path} is no readable token ledger: {error}") from error

    @classmethod
    def _parse(cls, data: bytes) -> Self:
        if not data.startswith(MAGIC):
            raise ValueError("it does not start with APEXTOKS")
        start = len(MAGIC) + 4
        (size,) = struct.unpack("<I", data[len(MAGIC) : start])
        header = json.loads(data[start : start + size])
        if header["schema"] != SCHEMA:
            raise ValueError(f"schema {header['schema']!r}; this version reads {SCHEMA}")
        count, body = header["tokens"], memoryview(data)[start + size :]
        if len(body) != 9 * count:
            raise ValueError(f"{len(body)} bytes of arrays where {count} tokens need {9 * count}")
        ledger = cls.__new__(cls)
        ledger._tokens = _from_little("i", body[: 4 * count])
        ledger._logprobs = _from_little("f", body[4 * count : 8 * count])
        ledger._mask = bytearray(body[8 * count :])
        ledger._prompt_length = header["prompt_length"]
        ledger._turns = [_turn(turn) for turn in header["turns"]]
        ledger._checksum = header["checksum"]
        ledger.check()
        return ledger

    def check(self) -> None:
        """Check every invariant over the whole stream.

        :raises LedgerError: names the first one that does not hold.
        """
        count = len(self._tokens)
        if not count == len(self._logprobs) == len(self._mask):
            raise LedgerError(
                f"{count} token IDs, {len(self._logprobs)} logprobs, {len(self._mask)} mask bytes"
            )
        if self._checksum != zlib.crc32(self._tokens):
            raise LedgerError("an earlier part of the stream is not what was appended")
        expected = bytearray(count)
        end = self._prompt_length
        for turn in self._turns:
            if turn.start != end or not turn.start < turn.end <= count:
                raise LedgerError(
                    f"turn {turn.index}: [{turn.start}, {turn.end}) does not follow {end}"
                )
            expected[turn.start : turn.end] = b"\1" * (turn.end - turn.start)
            end = turn.end if turn.observation_end is None else turn.observation_end
        if end != count:
            raise LedgerError(f"the turns end at {end}, the stream at {count}")
        if expected != self._mask:
            raise LedgerError("the loss mask is not 1 exactly on the sampled tokens")
        if any(
            lp != 0.0 for lp, sampled in zip(self._logprobs, expected, strict=True) if not sampled
        ):
            raise LedgerError("a token that was not sampled has a logprob")

    def debug_text(self, tokenizer: Decodes) -> str:
        """The stream for human eyes: one headed block for the prompt, each turn and observation."""
        blocks = [("prompt", 0, self._prompt_length)]
        for turn in self._turns:
            total = math.fsum(self._logprobs[turn.start : turn.end])
            head = f"turn {turn.index} sampled, {turn.finish_reason}, logprob {total:.3f}"
            blocks.append((head, turn.start, turn.end))
            if turn.observation_end is not None:
                blocks.append((f"observation {turn.index}", turn.end, turn.observation_end))
        return "\n".join(
            f"=== {head} [{start}:{end}]\n{tokenizer.decode(list(self._tokens[start:end]))}"
            for head, start, end in blocks
        )

    def _append(self, ids: array[int], logprobs: array[float], *, mask: int) -> None:
        start = len(self._tokens)
        self._tokens.extend(ids)
        self._logprobs.extend(logprobs)
        self._mask.extend(bytes((mask,)) * len(ids))
        self._checksum = zlib.crc32(ids, self._checksum)
        if not start + len(ids) == len(self._tokens) == len(self._logprobs) == len(self._mask):
            raise LedgerError(
                f"the stream was changed from outside: {len(self._tokens)} token IDs, "
                f"{len(self._logprobs)} logprobs, {len(self._mask)} mask bytes after an append of "
                f"{len(ids)} at {start}"
            )


def _ids(token_ids: Iterable[int], where: str) -> array[int]:
    try:
        ids = array("i", token_ids)
    except (TypeError, OverflowError) as error:
        raise LedgerError(f"{where}: not token IDs: {error}") from error
    if not ids:
        raise LedgerError(f"{where} has no tokens")
    if min(ids) < 0:
        raise LedgerError(f"{where}: token ID {min(ids)} is negative")
    return ids


def _logprobs(logprobs: Iterable[float], count: int, where: str) -> array[float]:
    try:
        values = array("f", logprobs)
    except (TypeError, OverflowError) as error:
        raise LedgerError(f"{where}: a logprob is missing or no number: {error}") from error
    if len(values) != count:
        raise LedgerError(f"{where}: {count} token IDs, but {len(values)} logprobs")
    if not all(map(math.isfinite, values)) or max(values) > HIGHEST_LOGPROB:
        wrong = next(v for v in values if not math.isfinite(v) or v > HIGHEST_LOGPROB)
        raise LedgerError(f"{where}: {wrong} is no logprob")
    return values


def _turn(raw: dict[str, Any]) -> Turn:
    return Turn(**{**raw, "calls": tuple(ToolCall(**call) for call in raw["calls"])})


def _little(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _from_little(code: str, data: memoryview) -> array[Any]:
    values: array[Any] = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
