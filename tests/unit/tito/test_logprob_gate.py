"""The gate lets rounding pass and names the turn of everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skyrl_apex_hookspecs import TokenError
from skyrl_apex_plugin.tito.logprob_gate import LogprobMismatch, compare_logprobs, turn_spans

LIMIT = 0.05
SPANS = ((0, 40), (60, 90), (120, 170))


def batch(noise: float = 0.002) -> tuple[Any, Any, Any]:
    """Stored, recomputed and mask of four rows with three turns each."""
    rng = np.random.default_rng(7)
    recomputed = -rng.exponential(1.0, (4, 200))
    mask = np.zeros((4, 200))
    for start, end in SPANS:
        mask[:, start:end] = 1
    stored = np.where(mask > 0, recomputed + rng.normal(0, noise, recomputed.shape), 0.0)
    return stored, recomputed, mask


def test_rounding_passes() -> None:
    report = compare_logprobs(*batch())
    report.require(mean_limit=LIMIT)
    assert report.tokens == 4 * 120
    assert 0.001 < report.mean < 0.003 and report.max < 0.02
    assert [position.turn for position in report.positions] == [0, 1, 2]


@pytest.mark.parametrize(("shift", "word"), [(1, "late"), (-1, "early")])
def test_a_mask_shifted_by_one_is_recognised(shift: int, word: str) -> None:
    stored, recomputed, mask = batch()
    mask = np.roll(mask, shift, axis=1)
    mask[:, 0 if shift > 0 else -1] = 0
    with pytest.raises(LogprobMismatch, match=f"the loss mask is one token {word}"):
        compare_logprobs(stored, recomputed, mask).require(mean_limit=LIMIT)


@pytest.mark.parametrize(("shift", "word"), [(1, "late"), (-1, "early")])
def test_logprobs_shifted_by_one_in_one_turn_name_it(shift: int, word: str) -> None:
    stored, recomputed, mask = batch()
    start, end = SPANS[1]
    stored[2, start:end] = np.roll(stored[2, start:end], shift)
    message = f"turn 1 of row 2 .*the stored logprobs are one token {word}"
    with pytest.raises(LogprobMismatch, match=message):
        compare_logprobs(stored, recomputed, mask).require(mean_limit=LIMIT)


def test_a_small_drift_that_starts_at_a_turn_names_that_turn() -> None:
    """A lost newline: earlier turns agree, everything behind it is a little off."""
    stored, recomputed, mask = batch()
    rng = np.random.default_rng(1)
    start = SPANS[1][0]
    stored[:, start:] += rng.normal(0, 0.04, stored[:, start:].shape) * mask[:, start:]
    report = compare_logprobs(stored, recomputed, mask)
    assert report.mean < LIMIT, "the plain mean would let it pass"
    with pytest.raises(LogprobMismatch, match="turn 1 of row"):
        report.require(mean_limit=LIMIT)


def test_one_drifting_row_among_many_is_found() -> None:
    stored, recomputed, mask = batch()
    start, end = SPANS[2]
    stored[3, start:end] -= 0.25
    many = [np.concatenate([array] + [array[:3]] * 8) for array in (stored, recomputed, mask)]
    with pytest.raises(LogprobMismatch, match="turn 2 of row 3"):
        compare_logprobs(*many).require(mean_limit=LIMIT)


@pytest.mark.parametrize(("tokens", "off", "passes"), [(2, 0.136, True), (2, 2.0, False)])
def test_a_turn_that_few_rows_reach_has_room_for_the_rounding_of_one_token(
    tokens: int, off: float, passes: bool
) -> None:
    stored, recomputed, mask = batch()
    mask[3, 180 : 180 + tokens] = 1
    stored[3, 180 : 180 + tokens] = recomputed[3, 180 : 180 + tokens]
    stored[3, 180] -= off
    report = compare_logprobs(stored, recomputed, mask)
    assert report.positions[-1].tokens == tokens
    assert (report.fault(mean_limit=LIMIT) is None) == passes


def test_a_single_token_counts_only_when_asked() -> None:
    stored, recomputed, mask = batch()
    stored[0, 5] -= 1.5
    report = compare_logprobs(stored, recomputed, mask)
    report.require(mean_limit=LIMIT)
    with pytest.raises(TokenError, match=r"turn 0 of row 0 .*limit for one token is 1"):
        report.require(mean_limit=LIMIT, max_limit=1.0)


def test_torch_tensors_and_single_rows_are_taken() -> None:
    torch = pytest.importorskip("torch")
    stored, recomputed, mask = batch()
    tensors = [torch.tensor(array).to(torch.bfloat16) for array in (stored, stored, mask)]
    assert compare_logprobs(*tensors).mean == 0.0
    assert compare_logprobs(list(stored[0]), list(recomputed[0]), list(mask[0])).tokens == 120


def test_shapes_and_empty_masks_are_refused() -> None:
    stored, recomputed, mask = batch()
    with pytest.raises(ValueError, match="shapes differ"):
        compare_logprobs(stored[:, :-1], recomputed, mask)
    with pytest.raises(ValueError, match="no trained token"):
        compare_logprobs(stored, recomputed, mask * 0)


def test_spans_are_unbroken_runs() -> None:
    assert turn_spans([1, 1, 0, 1, 0, 0, 1]) == [(0, 2), (3, 4), (6, 7)]
    assert turn_spans([0, 0]) == []
