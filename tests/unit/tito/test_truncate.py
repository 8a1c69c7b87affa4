"""Long tool output keeps its ends, by tokens, at a cost that does not grow with it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from skyrl_apex_plugin.tito.truncate import truncate_middle


def test_what_fits_is_untouched(small: Any) -> None:
    assert truncate_middle("x" * 50, 50, small) == "x" * 50
    assert truncate_middle("", 1, small) == ""


def test_head_and_tail_stay_and_the_marker_counts(small: Any) -> None:
    text = "".join(f"{number:04d} " for number in range(1000))
    cut = truncate_middle(text, 200, small)
    assert len(small.encode(cut)) <= 200
    head, tail = cut.split("\n[… ")[0], cut.rpartition(" …]\n")[2]
    assert text.startswith(head) and text.endswith(tail)
    assert len(head) > len(tail) > 20
    missing = int(cut.split("\n[… ")[1].split()[0])
    assert missing == len(text) - len(head) - len(tail)


def test_cuts_fall_between_characters(small: Any) -> None:
    cut = truncate_middle("🍎" * 500, 100, small)
    assert "\ufffd" not in cut and len(small.encode(cut)) <= 100
    assert cut.startswith("🍎") and cut.endswith("🍎")


def test_a_budget_below_the_marker_leaves_the_marker(small: Any) -> None:
    assert truncate_middle("x" * 100, 3, small) == "\n[… 100 characters left out …]\n"


def test_huge_texts_are_not_tokenized_whole(small: Any) -> None:
    text = "y" * 20_000_000
    started = time.process_time()
    truncate_middle(text, 100, small)
    assert time.process_time() - started < 1.0


def test_an_impossible_budget_is_refused(small: Any) -> None:
    with pytest.raises(ValueError, match="max_tokens=0"):
        truncate_middle("x", 0, small)
