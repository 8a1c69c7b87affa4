"""Cutting the middle out of long tool output, by tokens."""

from __future__ import annotations

from typing import Any

HEAD_SHARE = 0.6
"""Of the tokens kept: the head of a table or an error says more than its tail."""
ROUGH_CHARACTERS_PER_TOKEN = 16
"""No more characters than this per token budget are tokenized at either end of a huge text."""


def truncate_middle(text: str, max_tokens: int, tokenizer: Any) -> str:
    """``text`` if it has at most ``max_tokens`` tokens, else its head and tail around a marker.

    The marker says how many characters are missing; the result has at most ``max_tokens`` tokens
    unless the marker alone has more. Cuts fall between characters. Cost depends on ``max_tokens``,
    not on the length of ``text``.

    :raises ValueError: ``max_tokens`` is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}; expected at least 1")
    if len(text.encode()) <= max_tokens:  # every token stands for at least one byte
        return text
    window = max_tokens * ROUGH_CHARACTERS_PER_TOKEN
    if len(text) <= 2 * window and _count(text, tokenizer) <= max_tokens:
        return text
    head_text, tail_text = text[:window], text[-window:]
    room = max(0, max_tokens - _count(_marker(len(text)), tokenizer))
    while True:
        head = _first(head_text, int(room * HEAD_SHARE), tokenizer)
        tail = _last(tail_text, room - int(room * HEAD_SHARE), tokenizer)
        missing = len(text) - len(head) - len(tail)
        cut = head + _marker(missing) + tail
        surplus = _count(cut, tokenizer) - max_tokens
        if room == 0 or (surplus <= 0 and missing > 0):
            return cut
        room = max(0, room - max(1, surplus))


def _marker(missing: int) -> str:
    return f"\n[… {missing} characters left out …]\n"


def _count(text: str, tokenizer: Any) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def _offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoding["offset_mapping"])


def _first(text: str, tokens: int, tokenizer: Any) -> str:
    offsets = _offsets(text, tokenizer)
    return text[: offsets[tokens][0]] if tokens < len(offsets) else text


def _last(text: str, tokens: int, tokenizer: Any) -> str:
    offsets = _offsets(text, tokenizer)
    if tokens <= 0:
        return ""
    return text[offsets[-tokens][0] :] if tokens < len(offsets) else text
