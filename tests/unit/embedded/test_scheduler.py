"""Batching, prefix reuse, pausing's parts and weight swaps, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from skyrl_apex_plugin.embedded.request import Request
from skyrl_apex_plugin.embedded.scheduler import Scheduler

Ask = Callable[..., Request]
Finish = Callable[[Scheduler], list[Request]]


def reference_logprobs(checkpoint: Path, request: Request) -> torch.Tensor:
    """Logprobs of the request's output, recomputed by transformers in one forward pass."""
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([request.tokens])).logits[0].log_softmax(-1)
    start = len(request.prompt)
    positions = torch.arange(start - 1, len(request.tokens) - 1)
    return logits[positions, torch.tensor(request.output_ids)]


def test_greedy_output_equals_that_of_transformers(
    scheduler: Scheduler, checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    prompt = list(range(30, 60))
    request = ask(prompt, 40)
    scheduler.submit(request)
    finish(scheduler)
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    generated = model.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=-1
    )
    assert request.output_ids == generated[0, 30:].tolist()


@pytest.mark.parametrize("step_tokens", [1024, 7])
def test_logprobs_of_a_shared_batch_equal_those_of_transformers(
    new_scheduler: Callable[..., Scheduler],
    checkpoint: Path,
    ask: Ask,
    finish: Finish,
    step_tokens: int,
) -> None:
    scheduler = new_scheduler(slots=3, step_tokens=step_tokens)
    requests = [
        ask(range(n, 2 * n + 5), max_tokens=5 + n, temperature=1.0, seed=n) for n in range(1, 9)
    ]
    for request in requests:
        scheduler.submit(request)
    finish(scheduler)
    for request in requests:
        reported = torch.tensor([choice.logprob for choice in request.output])
        assert len(request.output) == request.decoding.max_tokens
        torch.testing.assert_close(
            reported, reference_logprobs(checkpoint, request), atol=1e-4, rtol=0
        )


def test_a_seeded_request_does_not_depend_on_its_company(
    new_scheduler: Callable[..., Scheduler], ask: Ask, finish: Finish
) -> None:
    def output(company: int) -> list[int]:
        scheduler = new_scheduler()
        request = ask([1, 2, 3], 20, temperature=1.0, seed=11)
        for n in range(company):
            scheduler.submit(ask([9, n], 30, temperature=1.0))
        scheduler.submit(request)
        finish(scheduler)
        return request.output_ids

    assert output(0) == output(7)


def test_the_next_turn_of_a_session_computes_only_what_is_new(
    scheduler: Scheduler, checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    first = ask(range(100), 10, session_id="s")
    scheduler.submit(first)
    finish(scheduler)
    second = ask([*first.tokens, 5, 6, 7], 10, session_id="s")
    scheduler.submit(second)
    finish(scheduler)
    # The last sampled token was never fed, so its keys are not cached.
    assert scheduler.counters.reused_tokens == len(first.tokens) - 1
    reported = torch.tensor([choice.logprob for choice in second.output])
    expected = reference_logprobs(checkpoint, second)
    torch.testing.assert_close(reported, expected, atol=1e-4, rtol=0)


def test_samples_of_one_prompt_compute_it_once(
    scheduler: Scheduler, checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    prompt = [n % 200 for n in range(150)]
    requests = [ask(prompt, 5, temperature=1.0, seed=n) for n in range(4)]
    for request in requests:
        scheduler.submit(request)
    finish(scheduler)
    assert scheduler.counters.reused_tokens == 3 * (len(prompt) - 1)
    for request in requests:
        reported = torch.tensor([choice.logprob for choice in request.output])
        expected = reference_logprobs(checkpoint, request)
        torch.testing.assert_close(reported, expected, atol=1e-4, rtol=0)


def test_prefixes_are_not_shared_between_salts(
    scheduler: Scheduler, ask: Ask, finish: Finish
) -> None:
    for salt in ("1", "2", None):
        scheduler.submit(ask(range(100), 2, salt=salt))
        finish(scheduler)
    assert scheduler.counters.reused_tokens == 0
    scheduler.submit(ask(range(100), 2, salt="2"))
    finish(scheduler)
    assert scheduler.counters.reused_tokens == 99


def test_more_sessions_than_slots_evict_the_oldest(
    new_scheduler: Callable[..., Scheduler], ask: Ask, finish: Finish
) -> None:
    scheduler = new_scheduler(slots=2)
    for session in ("a", "b", "c"):
        scheduler.submit(ask([ord(session)] * 80, 2, session_id=session))
        finish(scheduler)
    before = scheduler.counters.reused_tokens
    scheduler.submit(ask([ord("b")] * 80, 2, session_id="b"))
    finish(scheduler)
    assert scheduler.counters.reused_tokens - before == 79
    scheduler.submit(ask([ord("a")] * 80, 2, session_id="a"))
    finish(scheduler)
    assert scheduler.counters.reused_tokens - before == 79


def test_a_finished_session_leaves_nothing_to_reuse(
    scheduler: Scheduler, ask: Ask, finish: Finish
) -> None:
    scheduler.submit(ask(range(100), 2, session_id="s"))
    finish(scheduler)
    scheduler.finish_session("s")
    scheduler.submit(ask(range(100), 2, session_id="t"))
    finish(scheduler)
    assert scheduler.counters.reused_tokens == 0


def sampled_tokens(scheduler: Scheduler, ask: Ask, finish: Finish) -> list[int]:
    """Five different tokens that ``ask(range(10), temperature=1.0, seed=1)`` samples."""
    probe = ask(range(10), 5, temperature=1.0, seed=1)
    scheduler.submit(probe)
    finish(scheduler)
    assert len(set(probe.output_ids)) == 5
    return probe.output_ids


@pytest.mark.parametrize(("max_tokens", "length"), [(4, 4), (500, 246)])
def test_length_is_the_requests_limit_or_the_window(
    scheduler: Scheduler, ask: Ask, finish: Finish, max_tokens: int, length: int
) -> None:
    request = ask(range(10), max_tokens)
    scheduler.submit(request)
    finish(scheduler)
    assert (request.finish_reason, len(request.output)) == ("length", length)


def test_stop_tokens_and_strings_end_a_request_and_are_named(
    scheduler: Scheduler, ask: Ask, finish: Finish
) -> None:
    third = sampled_tokens(scheduler, ask, finish)[2]
    for options, named in (
        ({"stop_token_ids": (third,)}, third),
        ({"stop": (chr(third),)}, chr(third)),
    ):
        request = ask(range(10), 50, temperature=1.0, seed=1, **options)
        scheduler.submit(request)
        finish(scheduler)
        assert (request.finish_reason, request.stop_reason) == ("stop", named)
        assert len(request.output) == 3


def test_the_models_own_end_of_text_stops_unless_ignored(
    scheduler: Scheduler,
    new_scheduler: Callable[..., Scheduler],
    qwen3_checkpoint: Callable[..., Path],
    ask: Ask,
    finish: Finish,
) -> None:
    third = sampled_tokens(scheduler, ask, finish)[2]
    ending = new_scheduler(checkpoint=qwen3_checkpoint(eos_token_id=third))
    stopped = ask(range(10), 5, temperature=1.0, seed=1, ignore_eos=False)
    ignoring = ask(range(10), 5, temperature=1.0, seed=1, ignore_eos=True)
    for request in (stopped, ignoring):
        ending.submit(request)
    finish(ending)
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", None)
    assert len(stopped.output) == 3
    assert (ignoring.finish_reason, len(ignoring.output)) == ("length", 5)


def test_min_tokens_holds_a_stop_token_back(scheduler: Scheduler, ask: Ask, finish: Finish) -> None:
    probe = ask([4, 5, 6], 1)
    scheduler.submit(probe)
    finish(scheduler)
    first = probe.output_ids[0]
    request = ask([4, 5, 6], 10, stop_token_ids=(first,), min_tokens=3)
    scheduler.submit(request)
    finish(scheduler)
    assert len(request.output) >= 3
    assert first not in request.output_ids[:3]


def test_new_weights_act_from_the_next_token_on_and_are_reported(
    scheduler: Scheduler, checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    weights = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).state_dict()
    changed = {name: tensor * 1.1 for name, tensor in weights.items()}
    before = ask(range(20), 10)
    scheduler.submit(before)
    finish(scheduler)
    running = ask(range(20), 10)
    scheduler.submit(running)
    for _ in range(4):
        scheduler.step()
    scheduler.update_weights(changed)
    finish(scheduler)
    assert (before.weight_version, running.weight_version) == (0, 0)
    assert running.output_ids[:4] == before.output_ids[:4]
    old = [choice.logprob for choice in before.output]
    new = [choice.logprob for choice in running.output]
    assert new[:4] == pytest.approx(old[:4], abs=1e-5)
    assert all(abs(a - b) > 1e-3 for a, b in zip(old[4:], new[4:], strict=True))
    after = ask(range(20), 10)
    scheduler.submit(after)
    finish(scheduler)
    assert after.weight_version == 1


def test_no_prefix_outlives_the_weights_that_computed_it(
    scheduler: Scheduler, checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    weights = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).state_dict()
    idle = ask(range(100), 2)
    scheduler.submit(idle)
    finish(scheduler)
    running = ask(range(100, 200), 10)
    scheduler.submit(running)
    scheduler.step()
    scheduler.update_weights(weights)
    finish(scheduler)
    for prompt in (range(100), range(100, 200)):
        scheduler.submit(ask(prompt, 2))
        finish(scheduler)
    assert scheduler.counters.reused_tokens == 0


def test_resetting_running_requests_recomputes_them_with_the_new_weights(
    scheduler: Scheduler, checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    changed = {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
    request = ask(range(20), 10)
    scheduler.submit(request)
    for _ in range(4):
        scheduler.step()
    scheduler.update_weights(changed)
    scheduler.reset_prefix_cache(running=True)
    finish(scheduler)
    model.load_state_dict(changed)
    with torch.no_grad():
        logits = model(torch.tensor([request.tokens])).logits[0].log_softmax(-1)
    expected = [logits[20 + n - 1, token].item() for n, token in enumerate(request.output_ids)]
    reported = [choice.logprob for choice in request.output]
    assert reported[4:] == pytest.approx(expected[4:], abs=1e-4)


def test_aborted_requests_keep_their_tokens_and_free_their_slots(
    new_scheduler: Callable[..., Scheduler], ask: Ask, finish: Finish
) -> None:
    scheduler = new_scheduler(slots=1)
    running, waiting = ask(range(10), 50), ask(range(20), 50)
    for request in (running, waiting):
        scheduler.submit(request)
    for _ in range(3):
        scheduler.step()
    assert scheduler.abort_all() == [running, waiting]
    assert (len(running.output), len(waiting.output)) == (3, 0)
    assert {running.finish_reason, waiting.finish_reason} == {"abort"}
    assert not scheduler.busy
    last = ask(range(10), 2)
    scheduler.submit(last)
    assert finish(scheduler) == [last]


def test_prompt_scores_equal_those_of_transformers_across_chunks(
    new_scheduler: Callable[..., Scheduler], checkpoint: Path, ask: Ask, finish: Finish
) -> None:
    scheduler = new_scheduler(step_tokens=16)
    prompt = [n % 250 for n in range(100)]
    request = ask(prompt, 1, prompt_logprobs=2)
    scheduler.submit(request)
    finish(scheduler)
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [logits[n, token].item() for n, token in enumerate(prompt[1:])]
    assert [score.token_id for score in request.prompt_scores] == prompt[1:]
    assert [s.logprob for s in request.prompt_scores] == pytest.approx(expected, abs=1e-4)
    assert all(len(score.top) == 2 for score in request.prompt_scores)
