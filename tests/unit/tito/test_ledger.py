"""The ledger: its invariants hold after every append, and its file is small and checked."""

from __future__ import annotations

import json
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_apex_hookspecs import Outcome, Task, TokenError, ToolCall
from skyrl_apex_plugin.tito.ledger import LedgerError, TokenLedger

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)
LOGPROB = st.floats(-9999, 0, width=32)
SAMPLED = st.lists(st.tuples(st.integers(0, 2**31 - 1), LOGPROB), min_size=1, max_size=20)


def assert_invariants(ledger: TokenLedger) -> None:
    mask = ledger.loss_mask
    assert len(ledger.tokens) == len(mask) == len(ledger.logprobs)
    sampled = {i for turn in ledger.turns for i in range(turn.start, turn.end)}
    assert {i for i, bit in enumerate(mask) if bit} == sampled
    assert all(ledger.logprobs[i] == 0.0 for i in range(len(mask)) if not mask[i])


@given(prompt=IDS, rounds=st.lists(st.tuples(SAMPLED, IDS), max_size=6))
def test_invariants_hold_after_every_append(
    prompt: list[int], rounds: list[tuple[list[tuple[int, float]], list[int]]]
) -> None:
    ledger = TokenLedger(prompt)
    assert_invariants(ledger)
    for sampled, observation in rounds:
        ids, logprobs = zip(*sampled, strict=True)
        before = ledger.tokens[:]
        ledger.append_sampled(ids, logprobs, finish_reason="stop")
        assert_invariants(ledger)
        assert ledger.tokens[: len(before)] == before
        assert ledger.tokens[len(before) :].tolist() == list(ids)
        assert list(ledger.logprobs[len(before) :]) == list(array("f", logprobs))
        before = ledger.tokens[:]
        ledger.append_observation(observation)
        assert_invariants(ledger)
        assert ledger.tokens == before + array("i", observation)
    ledger.check()


def test_missing_logprob_rejects_the_turn_by_number_and_shifts_nothing() -> None:
    ledger = TokenLedger([1, 2])
    ledger.append_sampled([3, 4], [-0.5, -0.25], finish_reason="stop")
    ledger.append_observation([5])
    with pytest.raises(LedgerError, match="turn 1: a logprob is missing"):
        ledger.append_sampled([6, 7], [-0.5, None], finish_reason="stop")  # type: ignore[list-item]
    assert ledger.tokens.tolist() == [1, 2, 3, 4, 5]
    assert list(ledger.logprobs) == [0.0, 0.0, -0.5, -0.25, 0.0]
    ledger.check()


def test_length_mismatch_names_both_lengths_and_the_turn() -> None:
    ledger = TokenLedger([1])
    with pytest.raises(TokenError, match="turn 0: 3 token IDs, but 2 logprobs"):
        ledger.append_sampled([1, 2, 3], [-1.0, -1.0], finish_reason="stop")
    assert len(ledger) == 1 and ledger.turns == ()


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf"), 0.5])
def test_what_is_no_logprob_is_refused(logprob: float) -> None:
    with pytest.raises(LedgerError, match="is no logprob"):
        TokenLedger([1]).append_sampled([2], [logprob], finish_reason="stop")


def test_turns_and_observations_alternate() -> None:
    ledger = TokenLedger([1])
    with pytest.raises(LedgerError, match="needs a turn"):
        ledger.append_observation([2])
    ledger.append_sampled([2], [-1.0], finish_reason="stop")
    with pytest.raises(LedgerError, match="turn 1: no observation"):
        ledger.append_sampled([3], [-1.0], finish_reason="stop")
    ledger.append_observation([4])
    with pytest.raises(LedgerError, match="needs a turn"):
        ledger.append_observation([5])


@pytest.mark.parametrize("ids", [[], [-1], [2**31], ["a"]])
def test_what_are_no_token_ids_is_refused(ids: list[Any]) -> None:
    with pytest.raises(LedgerError):
        TokenLedger(ids)


def test_a_stream_changed_from_outside_is_noticed_before_it_leaves() -> None:
    ledger = TokenLedger([1, 2, 3])
    ledger.append_sampled([4], [-1.0], finish_reason="stop")
    ledger.tokens[1] = 9
    with pytest.raises(LedgerError, match="not what was appended"):
        ledger.to_trajectory(task=_task(), outcome=Outcome.COMPLETE)
    ledger.tokens[1] = 2
    ledger.tokens.append(7)
    with pytest.raises(LedgerError, match="5 token IDs, 4 logprobs"):
        ledger.save(Path("/nonexistent/never-written"))


def test_it_survives_its_file(tmp_path: Path) -> None:
    ledger = TokenLedger([1, 2])
    ledger.append_sampled([3], [-0.125], finish_reason="stop", model_seconds=1.5, weight_version=7)
    call = ToolCall(call_id="c", name="search", arguments={"q": "é\ud800"}, seconds=0.5)
    ledger.annotate_turn(calls=[call], tool_seconds=2.0, malformed=True)
    ledger.append_observation([4, 5])
    path = tmp_path / "agent" / "tokens.apex"
    ledger.save(path)
    loaded = TokenLedger.load(path)
    assert loaded.tokens == ledger.tokens and loaded.logprobs == ledger.logprobs
    assert loaded.loss_mask == ledger.loss_mask and loaded.prompt_length == 2
    (turn,) = loaded.turns
    assert (turn.start, turn.end, turn.observation_end) == (2, 3, 5)
    assert turn.weight_version == 7 and turn.malformed and turn.calls[0].name == "search"
    loaded.append_sampled([6], [-1.0], finish_reason="stop")
    loaded.check()
    assert [file.name for file in path.parent.iterdir()] == ["tokens.apex"]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    ledger = TokenLedger(range(100))
    ledger.append_sampled([1, 2], [-1.0, -2.0], finish_reason="stop")
    path = tmp_path / "tokens.apex"
    ledger.save(path)
    whole = path.read_bytes()
    header_size = struct.unpack("<I", whole[8:12])[0]
    body = 12 + header_size
    flipped = bytearray(whole)
    flipped[body + 40] ^= 1
    shifted_mask = whole[:-3] + bytes([1, 1, 0])
    newer = whole.replace(b'"schema":1', b'"schema":2')
    for damaged in (whole[:-1], whole[: body - 3], b"text", bytes(flipped), shifted_mask, newer):
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match=r"tokens\.apex is no readable token ledger"):
            TokenLedger.load(path)


def test_the_file_says_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "x"
    TokenLedger([1]).save(path)
    data = path.read_bytes()
    size = struct.unpack("<I", data[8:12])[0]
    assert json.loads(data[12 : 12 + size])["schema"] == 1


def test_a_hundred_thousand_tokens_are_small_and_fast(tmp_path: Path) -> None:
    ledger = TokenLedger(range(20_000))
    for turn in range(100):
        ledger.append_sampled(range(300), [-0.75] * 300, finish_reason="stop")
        arguments = {"request": {"action": "read_tab", "tab_index": turn, "note": "x" * 400}}
        call = ToolCall(call_id=f"call_{turn}", name="sheets", arguments=arguments)
        ledger.annotate_turn(calls=[call], tool_seconds=0.1)
        ledger.append_observation(range(500))
    assert len(ledger) == 100_000
    held = sum(map(sys.getsizeof, (ledger.tokens, ledger.logprobs, ledger.loss_mask)))
    assert held <= 12 * len(ledger)
    path = tmp_path / "tokens.apex"
    fastest_save, fastest_load = 9.0, 9.0
    for _ in range(5):
        started = time.process_time()
        ledger.save(path)
        fastest_save = min(fastest_save, time.process_time() - started)
        started = time.process_time()
        TokenLedger.load(path)
        fastest_load = min(fastest_load, time.process_time() - started)
    assert path.stat().st_size < 1_200_000
    assert fastest_save < 0.05 and fastest_load < 0.05


def test_debug_text_heads_every_part(small: Any) -> None:
    ledger = TokenLedger(small.encode("Q"))
    ledger.append_sampled(small.encode("call"), [-0.5] * 4, finish_reason="stop")
    ledger.append_observation(small.encode("four"))
    assert ledger.debug_text(small) == (
        "=== prompt [0:1]\nQ\n"
        "=== turn 0 sampled, stop, logprob -2.000 [1:5]\ncall\n"
        "=== observation 0 [5:9]\nfour"
    )


def _task() -> Task:
    return Task(task_id="t", directory=Path(), instruction="")
