"""Sampled tokens follow the distribution whose logprobs are reported."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch

from skyrl_apex_plugin.embedded.decoding import Decoding, Row, choose, score_prompt

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])


def sample(
    decoding: Decoding, count: int, mode: str = "processed_logprobs"
) -> list[tuple[int, float]]:
    rng = random.Random(0)
    rows = [Row(decoding, rng) for _ in range(count)]
    choices = choose(LOGITS.repeat(count, 1), rows, mode)  # type: ignore[arg-type]
    return [(choice.token_id, choice.logprob) for choice in choices]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_the_reported_logprobs(temperature: float) -> None:
    drawn = sample(Decoding(max_tokens=1, temperature=temperature), 20_000)
    expected = (LOGITS / temperature).log_softmax(-1)
    for token, count in Counter(token for token, _ in drawn).items():
        assert abs(count / 20_000 - expected[token].exp().item()) < 0.015
    for token, logprob in drawn[:100]:
        assert math.isclose(logprob, expected[token].item(), abs_tol=1e-5)


def test_raw_logprobs_are_those_of_temperature_one() -> None:
    expected = LOGITS.log_softmax(-1)
    for token, logprob in sample(Decoding(max_tokens=1, temperature=3.0), 50, "raw_logprobs"):
        assert math.isclose(logprob, expected[token].item(), abs_tol=1e-5)


@pytest.mark.parametrize(
    ("restriction", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.2}, {0, 1}),
        ({"top_k": 3, "top_p": 0.999}, {0, 1, 2}),
    ],
)
def test_cut_tokens_are_never_sampled_and_the_rest_is_renormalized(
    restriction: dict[str, float], kept: set[int]
) -> None:
    drawn = sample(Decoding(max_tokens=1, **restriction), 3000)  # type: ignore[arg-type]
    assert {token for token, _ in drawn} == kept
    assert math.isclose(sum(math.exp(lp) for lp in dict(drawn).values()), 1.0, abs_tol=1e-5)


def test_temperature_zero_takes_the_most_likely_token() -> None:
    assert {token for token, _ in sample(Decoding(max_tokens=1, temperature=0.0), 10)} == {0}


def test_forbidden_tokens_are_left_out() -> None:
    row = Row(Decoding(max_tokens=1, temperature=0.0), random.Random(0), forbidden=(0, 1))
    assert choose(LOGITS.unsqueeze(0), [row], "processed_logprobs")[0].token_id == 2


def test_a_seed_gives_the_same_token_in_any_company() -> None:
    decoding = Decoding(max_tokens=1, seed=5)
    alone = choose(LOGITS.unsqueeze(0), [Row(decoding, random.Random(5))], "processed_logprobs")
    company = [Row(decoding, random.Random(n)) for n in (1, 2, 5)]
    together = choose(LOGITS.repeat(3, 1), company, "processed_logprobs")
    assert together[2] == alone[0]


def test_alternatives_are_the_most_likely_tokens_in_order() -> None:
    row = Row(Decoding(max_tokens=1, top_logprobs=3), random.Random(0))
    choice = choose(LOGITS.unsqueeze(0), [row], "processed_logprobs")[0]
    assert [token for token, _ in choice.top] == [0, 1, 2]


def test_prompt_scores_are_logprobs_of_the_given_tokens() -> None:
    scores = score_prompt(LOGITS.repeat(2, 1), [3, 0], 0)
    expected = LOGITS.log_softmax(-1)
    assert [score.token_id for score in scores] == [3, 0]
    assert math.isclose(scores[0].logprob, expected[3].item(), abs_tol=1e-6)
