"""Exactness over random conversations and random sampled streams, for real tokenizers.

The oracle is transformers' ``apply_chat_template`` with the tokenizer's own template (the
vocabularies that ship without one are given a template here).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyrl_apex_plugin.tito import probes
from skyrl_apex_plugin.tito.check import Status, play
from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.renderer import CannotBridge, Renderer, load_renderer
from skyrl_apex_plugin.tito.tools import ToolCatalogue
from skyrl_apex_plugin.tito.truncate import truncate_middle

HERE = Path(__file__).parent
TINY = HERE.parents[2] / "plugins/skyrl_apex_miniworld/tiny_model/chat_template.jinja"

# Name: renderer, whether its template takes tools, template given here.
CASES: dict[str, tuple[str, bool, Path | None]] = {
    "qwen3": ("qwen3", True, None),
    "qwen3_6": ("qwen3", True, TINY),
    "llama3_1": ("template:hermes", False, None),
    "deepseek_v3": ("deepseek-v3", False, None),
    "glm": ("template:hermes", True, HERE / "glm.jinja"),
}
SPECIAL = ["<|im_end|>", "<tool_call>", "</tool_response>", "<think>", "<|user|>", "<|eot_id|>"]
TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "\n", " \n ", "4", "naïve 数字 🍎\u200d", '{"a": [1, 2]}', "a\r\n\tb"]),
)
OBSERVED = st.one_of(TEXT, st.sampled_from(SPECIAL), st.builds("{}{}".format, TEXT, TEXT))
EXAMPLES = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=CASES, scope="module")
def case(
    request: pytest.FixtureRequest,
    real_tokenizer: Callable[[str], Any],
    catalogue: ToolCatalogue,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, Renderer, ToolCatalogue]:
    renderer_name, takes_tools, template = CASES[request.param]
    tokenizer = real_tokenizer(request.param)
    if template is not None:
        tokenizer.chat_template = template.read_text()
    if request.param == "glm":
        folder = tmp_path_factory.mktemp("glm")
        markers = ("<|endoftext|>", "<|user|>", "<|observation|>")
        stops = [tokenizer.convert_tokens_to_ids(marker) for marker in markers]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        tokenizer.name_or_path = str(folder)
    tools = catalogue if takes_tools else ToolCatalogue([])
    return tokenizer, load_renderer(tokenizer, tools=tools, name=renderer_name), tools


@st.composite
def conversation(draw: st.DrawFn, tools: ToolCatalogue) -> list[probes.Message]:
    """A question, then turns with calls (where there are tools) and their results."""
    messages: list[Any] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXT)})
    messages.append({"role": "user", "content": draw(OBSERVED)})
    for cycle in range(draw(st.integers(1, 3))):
        calls = draw(st.integers(0, 3)) if len(tools) else 0
        said = draw(st.sampled_from(["", "I look.", "Ja, 数字: 4"])) if calls else "It is four."
        turn: dict[str, Any] = {"role": "assistant", "content": said}
        if calls:
            turn["tool_calls"] = [
                probes.call("calc", {"expr": draw(TEXT)}, f"functions.calc:{cycle * 4 + n}")
                for n in range(calls)
            ]
        messages.append(turn)
        for n in range(calls):
            call_id = f"functions.calc:{cycle * 4 + n}"
            text = draw(OBSERVED)
            result = {"role": "tool", "name": "calc", "tool_call_id": call_id, "content": text}
            messages.append(result)
        if not calls:
            messages.append({"role": "user", "content": draw(OBSERVED)})
    return messages


@EXAMPLES
@given(data=st.data())
def test_every_boundary_extends_exactly(
    case: tuple[Any, Renderer, ToolCatalogue], data: st.DataObject
) -> None:
    tokenizer, renderer, tools = case
    messages = data.draw(conversation(tools))
    found = play("random", messages, tokenizer, renderer, tools.for_model)
    assert found, messages
    for boundary in found:
        assert boundary.status in (Status.EXACT, Status.APPENDED), (messages, boundary)


@EXAMPLES
@given(data=st.data())
def test_what_is_appended_does_not_depend_on_what_was_sampled(
    case: tuple[Any, Renderer, ToolCatalogue], data: st.DataObject
) -> None:
    """Any stream that ends in the stop token is kept and continued as the plainest turn is."""
    tokenizer, renderer, _ = case
    question = [{"role": "user", "content": "?"}]
    following = [{"role": "user", "content": data.draw(OBSERVED)}]
    plain = tokenizer.encode("Four.", add_special_tokens=False)
    expected, stop = _extension(renderer, question, plain, following, tokenizer)
    stops = set(renderer.stop_token_ids)
    ordinary = st.integers(0, len(tokenizer) - 1).filter(lambda token: token not in stops)
    sampled = data.draw(st.lists(ordinary, min_size=1, max_size=30))
    ledger = TokenLedger(renderer.start(question))
    before = ledger.tokens[:]
    ledger.append_sampled([*sampled, stop], [-1.0] * (len(sampled) + 1), finish_reason="stop")
    renderer.parse([*sampled, stop])
    try:
        added = renderer.extend(ledger, following)
    except CannotBridge:
        return
    ledger.append_observation(added)
    assert ledger.tokens[: len(before) + len(sampled) + 1].tolist() == [*before, *sampled, stop]
    assert added == expected


def _extension(
    renderer: Renderer,
    question: Sequence[probes.Message],
    turn: list[int],
    following: Sequence[probes.Message],
    tokenizer: Any,
) -> tuple[list[int], int]:
    """What follows a plain turn, and the stop token that the template itself puts behind it."""
    cut_off = TokenLedger(renderer.start(question))
    cut_off.append_sampled(turn, [-1.0] * len(turn), finish_reason="length")
    with_stop = renderer.extend(cut_off, following)
    whole = probes.oracle(
        tokenizer,
        [*question, {"role": "assistant", "content": tokenizer.decode(turn)}, *following],
        None,
    )
    assert whole[-len(with_stop) :] == with_stop
    assert with_stop[0] in renderer.stop_token_ids
    return with_stop[1:], with_stop[0]


@EXAMPLES
@given(tokens=st.lists(st.integers(0, 100_000), max_size=60))
def test_parsing_takes_whatever_is_sampled(
    case: tuple[Any, Renderer, ToolCatalogue], tokens: list[int]
) -> None:
    _, renderer, _ = case
    turn = renderer.parse(tokens)
    assert all(call.error or call.name for call in turn.calls)


@EXAMPLES
@given(text=st.text(max_size=400), limit=st.integers(1, 60), repeat=st.integers(1, 20))
def test_truncated_output_keeps_its_ends_and_its_limit(
    case: tuple[Any, Renderer, ToolCatalogue], text: str, limit: int, repeat: int
) -> None:
    tokenizer, _, _ = case
    whole = text * repeat
    cut = truncate_middle(whole, limit, tokenizer)
    if cut == whole:
        return
    head, marker, tail = cut.partition("\n[… ")
    tail = tail.partition(" characters left out …]\n")[2]
    assert marker and whole.startswith(head) and whole.endswith(tail)
    marker_tokens = len(tokenizer.encode("\n[… 99999 characters left out …]\n"))
    count = len(tokenizer.encode(cut, add_special_tokens=False))
    assert count <= max(limit, marker_tokens + 1)
