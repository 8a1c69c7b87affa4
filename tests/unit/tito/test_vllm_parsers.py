"""The fallback's parsers from vllm, by vllm itself: it imports without a GPU, where installed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from skyrl_apex_plugin.tito.parsers import load_parser
from skyrl_apex_plugin.tito.renderer import load_renderer
from skyrl_apex_plugin.tito.tools import ToolCatalogue
from skyrl_apex_plugin.tito.turn import ParsedTurn, RendererError

vllm = pytest.importorskip("vllm", reason="vllm is not installed (pip install vllm==0.23.0)")

CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=search>\n<parameter=q>\n42\n</parameter>\n"
    "<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>search\n<arg_key>q</arg_key>\n<arg_value>42</arg_value>\n"
    "<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
WHAT_MODELS_SAMPLE = (
    "",
    "</tool_call>",
    "<tool_call>",
    "<tool_call>\n[1, 2]\n</tool_call>",
    '<tool_call>{"name": 7, "arguments": null}</tool_call>',
    '<tool_call>\n{"name":"search","arguments":{"q":',
    "<tool_call><function=search><parameter=q>",
    "<tool_call>search<arg_key>q",
    "[search(q=",
    '{"name": "search", "parameters": ',
    "</think></think>\n<think>",
    "\ud83c \x00 <|im_start|>🍎",
)


@pytest.fixture(scope="module")
def parse(small: Any, catalogue: ToolCatalogue) -> Any:
    def parse(name: str, text: str, *, prefilled: bool = False) -> ParsedTurn:
        parser = load_parser(name, small, catalogue.for_model)
        return parser.parse(small.encode(text), text, prefilled=prefilled)

    return parse


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", CALL, {"q": "x"}),
        ("qwen3_xml", XML, {"q": "42", "limit": 3}),
        ("qwen3_coder", XML, {"q": "42", "limit": 3}),
        ("glm45", GLM, {"q": "42", "limit": 3}),
        ("hermes+qwen3", f"<think>why</think>\n{CALL}", {"q": "x"}),
        ("qwen3_xml+qwen3", f"<think>why</think>\n{XML}", {"q": "42", "limit": 3}),
        ("glm45+glm45", f"<think>why</think>\n{GLM}", {"q": "42", "limit": 3}),
    ],
)
def test_calls_have_the_types_of_the_schema(
    parse: Any, name: str, text: str, arguments: dict[str, Any]
) -> None:
    turn = parse(name, text)
    (call,) = turn.calls
    assert (call.name, call.arguments, call.error) == ("search", arguments, None)
    assert call.call_id is None, "made up by vllm, not written by the model"
    assert turn.reasoning == ("why" if "<think>" in text else "") and turn.malformed is None


@pytest.mark.parametrize("name", ["qwen3_xml+qwen3", "qwen3_xml+deepseek_r1", "glm45+glm45"])
@pytest.mark.parametrize("prefilled", [False, True])
def test_reasoning_is_what_was_opened(parse: Any, name: str, prefilled: bool) -> None:
    call = GLM if name.startswith("glm") else XML
    opening = "" if prefilled else "<think>"
    turn = parse(name, f"{opening}look it up\n{call}", prefilled=prefilled)
    assert [c.name for c in turn.calls] == ["search"], "a call inside an unclosed block is real"
    assert turn.reasoning == "look it up"
    drafted = f"{opening}maybe {call.replace('search', 'a')}</think>\n{call}"
    turn = parse(name, drafted, prefilled=prefilled)
    assert [c.name for c in turn.calls] == ["search"], "a draft inside a closed block is none"
    turn = parse(name, f"{opening}on and on", prefilled=prefilled)
    assert not turn.calls and "inside its reasoning" in str(turn.malformed)
    turn = parse(name, f"{opening}done</think>", prefilled=prefilled)
    assert turn == ParsedTurn("", "done", ())


@pytest.mark.parametrize("name", ["qwen3_xml+qwen3", "qwen3_xml+deepseek_r1", "glm45+glm45"])
def test_a_turn_without_reasoning_is_an_answer(parse: Any, name: str) -> None:
    assert parse(name, "There are 4.") == ParsedTurn("There are 4.", "", ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("longcat", '<longcat_tool_call>\n{"name":"search","arguments":{"q":'),
        ("qwen3_xml", "<tool_call>\n<fun"),
        ("glm45", "<tool_call>search\n<arg_key>q"),
    ],
)
def test_a_call_that_cannot_be_read_is_one_correction(parse: Any, name: str, text: str) -> None:
    turn = parse(name, text)
    assert not turn.calls and "was not run" in str(turn.malformed)


def test_nothing_that_a_model_samples_raises(small: Any, catalogue: ToolCatalogue) -> None:
    from skyrl_apex_plugin.tito.vllm_parsers import registry

    found = registry()
    assert found is not None
    served = 0
    for name in found.tool_names:
        try:
            parser = load_parser(name, small, catalogue.for_model)
        except RendererError:
            continue
        served += 1
        for text in WHAT_MODELS_SAMPLE:
            turn = parser.parse([], text, prefilled=False)
            assert all(call.error or call.name for call in turn.calls), (name, text)
    assert served >= 15


def test_one_turn_leaves_nothing_for_the_next(small: Any, catalogue: ToolCatalogue) -> None:
    parser = load_parser("qwen3_xml", small, catalogue.for_model)
    first = parser.parse([], XML, prefilled=False)
    parser.parse([], "<tool_call>\n<function=search>\n<parameter=q>", prefilled=False)
    assert parser.parse([], XML, prefilled=False) == first


def test_a_conversation_without_tools_is_parsed_too(small: Any) -> None:
    parser = load_parser("qwen3_xml+qwen3", small, [])
    turn = parser.parse([], "<think>why</think>Four.", prefilled=False)
    assert turn == ParsedTurn("Four.", "why", ())
    assert load_renderer(small, tools=ToolCatalogue([]), name="template:qwen3_xml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama3_json", "does not fit the tokenizer 'byte-tokenizer': RuntimeError"),
        ("openai", "token IDs"),
        ("qwen3_xml+mistral", "MistralTokenizer"),
        ("qwen3_xml+nobody", r"unknown parser .*hermes, .*qwen3_xml.*one of: .*deepseek_r1"),
    ],
)
def test_a_parser_that_does_not_fit_is_refused_by_name(parse: Any, name: str, message: str) -> None:
    with pytest.raises(RendererError, match=message):
        parse(name, "")


def test_a_template_whose_calls_the_parser_does_not_read_is_logged(
    small: Any, catalogue: ToolCatalogue, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="skyrl_apex_plugin"):
        load_renderer(small, tools=catalogue, name="template:longcat")
        assert "parser longcat does not read the calls" in caplog.text
        caplog.clear()
        load_renderer(small, tools=catalogue, name="template:hermes")
    assert "does not read" not in caplog.text
