"""The tiny model: its size, its dialect, and that it speaks as the agent makes models speak."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from skyrl_apex_miniworld.expert import call_text
from skyrl_apex_miniworld.gateway.apps import APPS
from skyrl_apex_miniworld.gateway.catalogue import BundledServer, Catalogue
from skyrl_apex_miniworld.gateway.world import open_world
from skyrl_apex_miniworld.questions import Call
from skyrl_apex_miniworld.tasks import ALLOWED_TOOLS, SERVERS
from skyrl_apex_miniworld.tiny_model import checkpoint
from skyrl_apex_miniworld.tiny_model.demonstrations import CHECK_PROMPT, demonstrations
from skyrl_apex_miniworld.tiny_model.dialect import Dialect, chat_template, offered_tools

CALL = Call("files_read_file", {"path": "/Contracts/Borelis.pdf"})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint())


@pytest.fixture(scope="module")
def dialect(tokenizer: Any) -> Dialect:
    return Dialect(tokenizer)


@pytest.fixture(scope="module")
def tools() -> list[dict[str, Any]]:
    """The listing of a started task."""
    world = open_world("/nonexistent")
    servers = {name: BundledServer(APPS[name](world)) for name in SERVERS}
    return Catalogue(servers, ALLOWED_TOOLS).tools()


def test_the_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in checkpoint().iterdir()) < 10_000_000


def test_the_checkpoint_is_a_qwen3_of_two_million_parameters() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint())
    assert model.config.model_type == "qwen3"
    assert 1_500_000 < sum(weight.numel() for weight in model.parameters()) < 2_500_000
    assert (checkpoint() / "chat_template.jinja").read_text() == chat_template()


def test_it_was_shown_the_tools_as_the_agent_shows_them(tools: list[dict[str, Any]]) -> None:
    from skyrl_apex_plugin.tito.tools import ToolCatalogue

    shown = ToolCatalogue(tools).for_model
    assert json.dumps(shown) == json.dumps(offered_tools())


@pytest.mark.parametrize("system", ["", CHECK_PROMPT])
def test_it_was_trained_on_the_agents_tokens(
    tokenizer: Any, dialect: Dialect, tools: list[dict[str, Any]], system: str
) -> None:
    from skyrl_apex_plugin.tito.ledger import TokenLedger
    from skyrl_apex_plugin.tito.renderer import load_renderer
    from skyrl_apex_plugin.tito.tools import ToolCatalogue

    renderer = load_renderer(tokenizer, tools=ToolCatalogue(tools))
    assert renderer.name == "qwen3"
    messages = [{"role": "system", "content": system}] if system else []
    prompt = renderer.start([*messages, {"role": "user", "content": "Which fee?"}])
    assert prompt == dialect.prompt(system, "Which fee?")
    said = dialect.turn(call_text(CALL))
    parsed = renderer.parse(said)
    assert [(call.name, call.arguments) for call in parsed.calls] == [(CALL.tool, CALL.arguments)]
    ledger = TokenLedger(prompt)
    ledger.append_sampled(said, [0.0] * len(said), finish_reason="stop")
    result = {"role": "tool", "tool_call_id": "1", "name": CALL.tool, "content": "Fee: 1 EUR"}
    assert renderer.extend(ledger, [result]) == dialect.observation(prompt, said, "Fee: 1 EUR")


def test_conversations_are_short(dialect: Dialect) -> None:
    lengths = [len(dialect.encode(shown)[0]) for shown in islice(demonstrations("length"), 50)]
    assert max(lengths) < 400
    assert len(dialect.prompt("", "What?")) < 200


def test_digits_and_names_are_the_same_tokens_wherever_they_stand(dialect: Dialect) -> None:
    encode = dialect.tokenizer.encode
    (question, call) = (encode("sales of Borelis in May?"), encode('"row": "Borelis", '))
    name = encode("Borelis")
    assert _contains(question, name)
    assert _contains(call, name)
    assert len(encode("48213")) == 5


def _contains(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[at : at + len(part)] == part for at in range(len(tokens)))


def test_only_what_the_model_says_is_trained_on(dialect: Dialect) -> None:
    for shown in islice(demonstrations("mask"), 14):
        tokens, mask = dialect.encode(shown)
        said = [token for token, flag in zip(tokens, mask, strict=True) if flag]
        assert dialect.tokenizer.decode(said) == "".join(
            f"{turn.text}<|im_end|>" for turn in shown.turns
        )


def test_a_step_of_warm_up_lowers_the_loss(dialect: Dialect, tokenizer: Any) -> None:
    from skyrl_apex_miniworld.tiny_model.warm_up import WarmUp, new_model, warm_up

    model = new_model(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, seed=0)
    losses = []
    settings = WarmUp(steps=12, bare_steps=6, batch=4, warm_up_steps=2)
    warm_up(model, dialect, demonstrations("loss"), settings, lambda _, loss: losses.append(loss))
    assert len(losses) == 12
    assert sum(losses[-3:]) < sum(losses[:3])


def test_the_command_writes_a_checkpoint_that_loads(tmp_path: Path) -> None:
    from click.testing import CliRunner
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from skyrl_apex_miniworld.tiny_model.__main__ import main

    result = CliRunner().invoke(main, [str(tmp_path), "--steps", "1", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    made = AutoTokenizer.from_pretrained(tmp_path)
    assert made.get_vocab() == AutoTokenizer.from_pretrained(checkpoint()).get_vocab()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size >= len(made)


def test_demonstrations_end_after_two_errors_at_most() -> None:
    for shown in islice(demonstrations("errors"), 500):
        errors = sum('"error"' in (turn.observation or "") for turn in shown.turns)
        assert errors <= 2
        assert errors < 2 or not shown.system
        assert shown.turns[-1].call is None
