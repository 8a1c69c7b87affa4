"""Boundaries and parsing, with the library's renderer and with the template's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skyrl_apex_plugin.tito import library, probes
from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.renderer import (
    CannotBridge,
    Renderer,
    RendererError,
    check_renderer_name,
    load_renderer,
)
from skyrl_apex_plugin.tito.tools import CheckedCall, ToolCatalogue

QUESTION = [{"role": "user", "content": "2+2?"}]
CALL = '<tool_call>\n{"name": "calc", "arguments": {"expr": "2+2"}}\n</tool_call>'
RESULT = {"role": "tool", "tool_call_id": "c0", "name": "calc", "content": "4"}
OTHER = {"role": "tool", "tool_call_id": "c1", "name": "calc", "content": "9"}
NEXT = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(params=["auto", "template:hermes"])
def renderer(request: pytest.FixtureRequest, small: Any, catalogue: ToolCatalogue) -> Renderer:
    return load_renderer(small, tools=catalogue, name=request.param)


Sample = Callable[..., TokenLedger]


def appended(small: Any, renderer: Renderer, sample: Sample, text: str, *messages: Any) -> str:
    ledger = sample(small, renderer.start(QUESTION), text)
    return str(small.decode(renderer.extend(ledger, messages)))


def test_the_tiny_models_template_is_served_by_the_library(
    small: Any, catalogue: ToolCatalogue
) -> None:
    assert load_renderer(small, tools=catalogue).name == "qwen3"


def test_the_newline_behind_the_stop_token_belongs_to_the_observation(
    small: Any, renderer: Renderer, sample: Sample
) -> None:
    assert appended(small, renderer, sample, CALL + "<|im_end|>", RESULT) == (
        f"\n<|im_start|>user\n<tool_response>\n4\n</tool_response>{NEXT}"
    )


def test_two_observations_share_one_turn(small: Any, renderer: Renderer, sample: Sample) -> None:
    assert appended(small, renderer, sample, f"{CALL}\n{CALL}<|im_end|>", RESULT, OTHER) == (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n"
        f"<tool_response>\n9\n</tool_response>{NEXT}"
    )


def test_a_turn_cut_off_behind_its_call_gets_its_stop_token_unsampled(
    small: Any, renderer: Renderer, sample: Sample
) -> None:
    ledger = sample(small, renderer.start(QUESTION), CALL, "length")
    added = renderer.extend(ledger, [RESULT])
    assert small.decode(added).startswith("<|im_end|>\n<|im_start|>user")
    end = ledger.turns[-1].end
    ledger.append_observation(added)
    assert ledger.loss_mask[end] == 0 and ledger.logprobs[end] == 0.0
    assert small.decode([ledger.tokens[end]]) == "<|im_end|>"


def test_sampled_ids_stay_although_their_text_encodes_otherwise(
    real_tokenizer: Callable[[str], Any], catalogue: ToolCatalogue
) -> None:
    tokenizer = real_tokenizer("qwen3")
    renderer = load_renderer(tokenizer, tools=catalogue)
    ids = [*tokenizer.encode("sea"), *tokenizer.encode("rch")]
    assert tokenizer.encode(tokenizer.decode(ids)) != ids
    ledger = TokenLedger(renderer.start(QUESTION))
    sampled = [*ids, renderer.stop_token_ids[0]]
    ledger.append_sampled(sampled, [-1.0] * len(sampled), finish_reason="stop")
    ledger.append_observation(renderer.extend(ledger, QUESTION))
    turn = ledger.turns[0]
    assert ledger.tokens[turn.start : turn.end - 1].tolist() == ids


def test_a_user_message_follows_a_turn_without_calls(
    small: Any, renderer: Renderer, sample: Sample
) -> None:
    note = {"role": "user", "content": "Call a tool."}
    assert appended(small, renderer, sample, "Hm.<|im_end|>", note) == (
        f"\n<|im_start|>user\nCall a tool.{NEXT}"
    )


def test_a_turn_that_stops_inside_its_reasoning_is_followed_as_any_other(
    small: Any, renderer: Renderer, sample: Sample
) -> None:
    note = {"role": "user", "content": "Go on."}
    text = appended(small, renderer, sample, "<think>I am<|im_end|>", note)
    assert text == f"\n<|im_start|>user\nGo on.{NEXT}"


def test_what_cannot_be_bridged_ends_with_a_named_failure(
    small: Any, renderer: Renderer, sample: Sample
) -> None:
    ledger = sample(small, renderer.start(QUESTION), "Hm.<|im_end|>")
    with pytest.raises(CannotBridge):
        renderer.extend(ledger, [{"role": "nobody", "content": "?"}, {"role": "assistant"}])
    assert ledger.turns[-1].observation_end is None
    with pytest.raises(CannotBridge, match="no open turn"):
        renderer.extend(TokenLedger([1]), [RESULT])


def test_tokens_behind_a_stop_token_cannot_be_bridged(small: Any, catalogue: ToolCatalogue) -> None:
    renderer = load_renderer(small, tools=catalogue, name="qwen3")
    ledger = TokenLedger(renderer.start(QUESTION))
    ids = small.encode("Hm.<|im_end|>more")
    ledger.append_sampled(ids, [-1.0] * len(ids), finish_reason="stop")
    with pytest.raises(CannotBridge, match="would change tokens that were sampled"):
        renderer.extend(ledger, [RESULT])


# Parsing


def calls(renderer: Renderer, small: Any, text: str) -> list[str]:
    return [call.name for call in renderer.parse(small.encode(text)).calls if call.error is None]


def test_a_call_inside_an_unclosed_think_counts(small: Any, renderer: Renderer) -> None:
    text = f"<think>I should look it up\n{CALL}"
    assert calls(renderer, small, text) == ["calc"]
    assert renderer.parse(small.encode(text)).reasoning == "I should look it up"


def test_a_draft_in_a_closed_think_does_not_count(small: Any, renderer: Renderer) -> None:
    draft = '<tool_call>{"name":"a","arguments":{}}</tool_call>'
    real = '<tool_call>\n{"name":"b","arguments":{}}\n</tool_call>'
    assert calls(renderer, small, f"<think>maybe {draft}</think>\n{real}") == ["b"]


JSON_CALL = '<tool_call>\n{{"name": "{}", "arguments": {{}}}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function={}>\n</function>\n</tool_call>"
GLM_CALL = "<tool_call>{}\n</tool_call>"


@pytest.mark.parametrize(
    ("tokenizer_name", "name", "form", "opening"),
    [
        ("qwen3", "qwen3", JSON_CALL, "<think>"),
        ("qwen3_6", "qwen3.5", XML_CALL, ""),
        ("qwen3_6", "qwen3.6", XML_CALL, ""),
        ("glm", "glm-4.5", GLM_CALL, "<think>"),
        ("glm", "glm-4.5", GLM_CALL, "\n<think>"),
        ("glm", "glm-5", GLM_CALL, ""),
        ("glm", "glm-5", GLM_CALL, "<think>"),
    ],
)
def test_drafts_in_closed_reasoning_do_not_count_in_any_family(
    real_tokenizer: Callable[[str], Any], tokenizer_name: str, name: str, form: str, opening: str
) -> None:
    tokenizer = real_tokenizer(tokenizer_name)
    tools = ToolCatalogue([{"name": "a"}, {"name": "b"}])
    renderer = load_renderer(tokenizer, tools=tools, name=name)
    draft, real = form.format("a"), form.format("b")
    text = f"{opening}maybe {draft} or not</think>\nNow:\n{real}"
    turn = renderer.parse(tokenizer.encode(text, add_special_tokens=False))
    assert [(call.name, call.error) for call in turn.calls] == [("b", None)]
    assert turn.content == "Now:" and turn.malformed is None
    assert turn.reasoning.startswith("maybe") and turn.reasoning.endswith("or not")
    only = renderer.parse(tokenizer.encode(f"{opening}maybe {draft}</think>\nFour."))
    assert only.calls == () and only.content.strip() == "Four." and only.malformed is None
    unclosed = renderer.parse(tokenizer.encode(f"{opening}I should\n{draft}"))
    assert [call.name for call in unclosed.calls] == ["a"]


TEXTS = {
    "plain": {"type": "string"},
    "referred": {"$ref": "#/$defs/Text"},
    "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "listed": {"type": ["string", "null"]},
    "nullable": {"type": "string", "nullable": True},
    "optional_reference": {"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]},
    "chosen": {"enum": ["12", "null", "true", '{"c": 1}', "a word"]},
}
NOT_NULL = ("plain", "referred", "chosen")
TYPED = ToolCatalogue(
    [
        {
            "name": "typed",
            "inputSchema": {
                "type": "object",
                "properties": {
                    **TEXTS,
                    "number": {"type": "integer"},
                    "either": {"type": ["string", "integer"]},
                    "anything": {},
                },
                "$defs": {"Text": {"type": "string"}},
            },
        }
    ]
)


def written(tokenizer: Any, name: str, **arguments: str) -> Any:
    """What is dispatched of a call whose arguments are written without quotes."""
    renderer = load_renderer(tokenizer, tools=TYPED, name=name)
    if name.startswith("glm"):
        parts = (
            f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items()
        )
        text = f"</think>\n<tool_call>typed\n{''.join(parts)}</tool_call>"
    else:
        parts = (f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
        text = f"</think>\n<tool_call>\n<function=typed>\n{''.join(parts)}</function>\n</tool_call>"
    (call,) = renderer.parse(tokenizer.encode(text, add_special_tokens=False)).calls
    assert call.error is None, call.error
    checked = TYPED.check(call.name, call.arguments)
    assert isinstance(checked, CheckedCall), checked
    return checked.arguments


@pytest.mark.parametrize(
    ("tokenizer_name", "name"), [("qwen3_6", "qwen3.5"), ("qwen3_6", "qwen3.6"), ("glm", "glm-5")]
)
def test_what_is_written_without_quotes_is_read_as_its_type(
    real_tokenizer: Callable[[str], Any], tokenizer_name: str, name: str
) -> None:
    tokenizer = real_tokenizer(tokenizer_name)
    for value in ("12", "true", '{"c": 1}', "a word"):
        expected = dict.fromkeys(TEXTS, value)
        assert written(tokenizer, name, **expected) == expected
    nulls = {key: "null" if key in NOT_NULL else None for key in TEXTS}
    assert written(tokenizer, name, **dict.fromkeys(TEXTS, "null")) == nulls
    others = {"number": "5", "either": "word", "anything": "word"}
    assert written(tokenizer, name, **others) == {**others, "number": 5}
    assert written(tokenizer, name, either="5", anything="[1]") == {"either": 5, "anything": [1]}


def test_a_quoted_null_stays_a_text_in_json(small: Any) -> None:
    text = '<tool_call>{"name":"typed","arguments":{"optional":"null","listed":null}}</tool_call>'
    for name in ("qwen3", "template:hermes"):
        (call,) = load_renderer(small, tools=TYPED, name=name).parse(small.encode(text)).calls
        assert call.arguments == {"optional": "null", "listed": None}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>\n{"name":"search","arguments":{"q":', "not closed"),
        ('<tool_call>{"name": "search", "arguments": {q}}</tool_call>', "valid"),
        ('<tool_call>{"arguments": {}}</tool_call>', "name"),
        ("<tool_call>[1, 2]</tool_call>", "not run"),
        ('<tool_call>{"name": "search", "arguments": [1]}</tool_call>', "must be a JSON object"),
    ],
)
def test_an_unreadable_call_is_one_correction_and_no_call(
    small: Any, renderer: Renderer, text: str, reason: str
) -> None:
    turn = renderer.parse(small.encode(text + "<|im_end|>"))
    (attempt,) = turn.calls
    assert attempt.error is not None and reason in attempt.error
    assert turn.malformed is None, "the attempt already carries the correction"


OTHER_CALL = CALL.replace("2+2", "3+3")


@pytest.mark.parametrize(
    "text",
    [
        f"{CALL.removesuffix('</tool_call>')}{OTHER_CALL}",
        CALL.replace("</tool_call>", "trailing</tool_call>"),
        CALL.replace("</tool_call>", '{"name": "calc", "arguments": {}}</tool_call>'),
        CALL.replace("</tool_call>", "}</tool_call>"),
    ],
)
def test_a_block_with_more_than_one_call_in_it_is_one_correction_and_no_call(
    small: Any, renderer: Renderer, text: str
) -> None:
    (attempt,) = renderer.parse(small.encode(text + "<|im_end|>")).calls
    assert attempt.error is not None and "was not run" in attempt.error
    after = renderer.parse(small.encode(f"{text}\n{OTHER_CALL}<|im_end|>")).calls
    assert [call.arguments for call in after if call.error is None] == [{"expr": "3+3"}]


def test_good_and_bad_calls_of_a_turn_keep_their_order(small: Any, renderer: Renderer) -> None:
    turn = renderer.parse(small.encode(f"{CALL}\n<tool_call>oops</tool_call>\n{CALL}<|im_end|>"))
    assert [call.error is None for call in turn.calls] == [True, False, True]


def test_arguments_that_hold_the_end_tag_are_read_whole(
    small: Any, catalogue: ToolCatalogue
) -> None:
    renderer = load_renderer(small, tools=catalogue, name="template:hermes")
    text = '<tool_call>{"name": "calc", "arguments": {"expr": "</tool_call>"}}</tool_call>'
    (attempt,) = renderer.parse(small.encode(text)).calls
    assert attempt.arguments == {"expr": "</tool_call>"}


def test_content_and_reasoning_are_told_apart(small: Any, renderer: Renderer) -> None:
    turn = renderer.parse(small.encode("<think>\nhm\n</think>\n\nFour.<|im_end|>"))
    assert (turn.content, turn.reasoning, turn.calls, turn.malformed) == ("Four.", "hm", (), None)


def test_reasoning_that_never_ends_is_malformed(small: Any, renderer: Renderer) -> None:
    turn = renderer.parse(small.encode("<think>hm<|im_end|>"))
    assert turn.malformed is not None and "reasoning" in turn.malformed and turn.content == ""


def test_a_call_spelled_in_ordinary_tokens_is_malformed(
    real_tokenizer: Callable[[str], Any], catalogue: ToolCatalogue
) -> None:
    tokenizer = real_tokenizer("qwen3")
    renderer = load_renderer(tokenizer, tools=catalogue)
    ids = [i for letter in CALL for i in tokenizer.encode(letter)]
    turn = renderer.parse(ids)
    assert turn.calls == () and turn.malformed is not None


# Choosing


def test_an_unknown_parser_lists_the_known_names(small: Any, catalogue: ToolCatalogue) -> None:
    with pytest.raises(RendererError, match=r"unknown parser 'nonsense'; known: hermes"):
        load_renderer(small, tools=catalogue, name="template:nonsense")


def test_an_unknown_renderer_lists_the_known_names(small: Any, catalogue: ToolCatalogue) -> None:
    with pytest.raises(RendererError, match=r"unknown renderer 'qwen9'; known: auto, qwen3, "):
        load_renderer(small, tools=catalogue, name="qwen9")


@pytest.mark.parametrize(
    "name", ["auto", "qwen3", "qwen3:no-thinking", "glm-4.5", "template:hermes"]
)
def test_a_known_name_is_taken_without_a_tokenizer(name: str) -> None:
    check_renderer_name(name)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("qwen9", "auto, qwen3, "),
        ("qwen3:loud", "auto, qwen3, "),
        ("qwen3:", "auto, qwen3, "),
        ("default", "auto, qwen3, "),
        ("", "auto, qwen3, "),
        ("template", "hermes"),
        ("template:", "hermes"),
        ("template:nonsense", "hermes"),
        ("template:hermes+", "hermes"),
    ],
)
def test_an_unknown_name_is_refused_without_a_tokenizer(name: str, known: str) -> None:
    with pytest.raises(ValueError, match=f"unknown .*; known: {known}"):
        check_renderer_name(name)


def test_a_template_that_no_renderer_knows_asks_for_a_parser(
    small: Any, catalogue: ToolCatalogue
) -> None:
    strange = clone(small, small.chat_template.replace("# Tools", "# Instruments"))
    with pytest.raises(RendererError, match="renderer=template:PARSER"):
        load_renderer(strange, tools=catalogue)
    assert load_renderer(strange, tools=catalogue, name="template:hermes")


def test_an_override_that_differs_from_the_template_is_logged(
    small: Any, catalogue: ToolCatalogue, caplog: pytest.LogCaptureFixture
) -> None:
    strange = clone(small, small.chat_template.replace("# Tools", "# Instruments"))
    load_renderer(strange, tools=catalogue, name="qwen3")
    assert "renderer qwen3 differs from the chat template of" in caplog.text


def test_reasoning_is_switched_off_by_a_suffix(small: Any, catalogue: ToolCatalogue) -> None:
    renderer = load_renderer(small, tools=catalogue, name="qwen3:no-thinking")
    assert small.decode(renderer.start(QUESTION)).endswith("<think>\n\n</think>\n\n")


def test_a_model_name_decides_where_it_is_known(small: Any, catalogue: ToolCatalogue) -> None:
    named = load_renderer(small, tools=catalogue, model_name="Qwen/Qwen3-8B")
    assert named.name == "qwen3"


# The template's own renderer proves itself at start-up


def clone(tokenizer: Any, template: str) -> Any:
    import copy

    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def test_a_template_whose_turns_depend_on_their_number_is_refused_by_name(
    small: Any, catalogue: ToolCatalogue
) -> None:
    numbered = small.chat_template.replace(
        "'\\n<tool_response>\\n' +", "'\\n<tool_response>\\n#' ~ loop.index ~ ' ' ~"
    )
    with pytest.raises(RendererError, match=r"byte-tokenizer .*cannot be extended exactly"):
        load_renderer(clone(small, numbered), tools=catalogue, name="template:hermes")


@pytest.mark.parametrize(
    ("unstable", "what"),
    [
        ("{{ add_generation_prompt }}", "a generation prompt"),
        ("{{ messages[1] is defined }}", "an assistant's turn"),
    ],
)
def test_a_template_that_rewrites_what_came_before_is_refused_by_name(
    small: Any, catalogue: ToolCatalogue, unstable: str, what: str
) -> None:
    with pytest.raises(RendererError, match=rf"byte-tokenizer \(sha256 .*when {what} follows"):
        load_renderer(
            clone(small, unstable + small.chat_template), tools=catalogue, name="template:hermes"
        )


@pytest.mark.parametrize(
    ("follows", "what"),
    [
        (lambda messages, prompt: prompt, "a generation prompt"),
        (lambda messages, prompt: messages[-1]["role"] == "user" and len(messages) > 1, "'user'"),
        (lambda messages, prompt: messages[-1]["role"] == "tool", "'tool'"),
    ],
)
def test_a_library_renderer_that_rewrites_what_came_before_is_refused_at_start_up(
    small: Any,
    catalogue: ToolCatalogue,
    monkeypatch: pytest.MonkeyPatch,
    follows: Callable[..., bool],
    what: str,
) -> None:
    honest = library.create(small, "qwen3")
    render = honest.render_ids

    def unstable(messages: Any, *, add_generation_prompt: bool = False, **more: Any) -> Any:
        ids = render(messages, add_generation_prompt=add_generation_prompt, **more)
        return [small.eos_token_id, *ids] if follows(messages, add_generation_prompt) else ids

    monkeypatch.setattr(honest, "render_ids", unstable)
    monkeypatch.setattr(library, "create", lambda tokenizer, name: honest)
    with pytest.raises(RendererError, match=f"'byte-tokenizer' .*{what}.*template:PARSER"):
        library.LibraryRenderer(small, "qwen3", catalogue)


def test_a_template_that_drops_calls_is_refused(small: Any, catalogue: ToolCatalogue) -> None:
    deaf = small.chat_template.replace("message.tool_calls or []", "[]")
    with pytest.raises(RendererError, match="leaves out the tool calls"):
        load_renderer(clone(small, deaf), tools=catalogue, name="template:hermes")
    without_tools = ToolCatalogue([])
    assert load_renderer(clone(small, deaf), tools=without_tools, name="template:hermes")


def test_a_tokenizer_without_template_is_refused(small: Any, catalogue: ToolCatalogue) -> None:
    bare = clone(small, "x")
    bare.chat_template = None
    with pytest.raises(RendererError, match="has no chat template"):
        load_renderer(bare, tools=catalogue, name="template:hermes")


def test_probes_see_a_lost_newline(small: Any) -> None:
    """The oracle and the probes can fail: a renderer that loses one newline is caught."""

    def lossy(messages: Any, tools: Any) -> list[int]:
        ids = probes.oracle(small, messages, tools)
        newline = small.encode("\n")[0]
        at = len(ids) - 1 - ids[::-1].index(newline, 1)
        return ids[:at] + ids[at + 1 :]

    assert list(probes.differences(small, lossy))
    exact = lambda messages, tools: probes.oracle(small, messages, tools)  # noqa: E731
    assert not list(probes.differences(small, exact))


@pytest.mark.parametrize("name", ["glm-4.5", "glm-5"])
@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_turn_of_glm_that_was_cut_off_ends_with_the_next_messages_marker(
    real_tokenizer: Any, catalogue: ToolCatalogue, sample: Any, name: str, role: str
) -> None:
    tokenizer = real_tokenizer("glm")
    renderer = load_renderer(tokenizer, tools=catalogue, name=name)
    prompt = renderer.start([{"role": "user", "content": "?"}])
    text = "<tool_call>search<arg_key>q</arg_key><arg_value>x</arg_value></tool_call>"
    message = {"role": role, "content": "4", "tool_call_id": "call_1", "name": "search"}
    marker = {"tool": "<|observation|>", "user": "<|user|>"}[role]
    whole = sample(tokenizer, prompt, text + marker)
    cut = sample(tokenizer, prompt, text, "length")
    added = renderer.extend(cut, [message])
    assert added == tokenizer.encode(marker) + renderer.extend(whole, [message])
    assert "<|endoftext|>" not in tokenizer.decode(added)
