"""``skyrl-apex tito check`` and the loading of tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyrl_apex_plugin.cli.tito import tito
from skyrl_apex_plugin.tito.check import Status, check, play
from skyrl_apex_plugin.tito.renderer import load_renderer
from skyrl_apex_plugin.tito.tokenizer import load_tokenizer
from skyrl_apex_plugin.tito.tools import ToolCatalogue


@pytest.fixture
def saved(small: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    small.save_pretrained(folder)
    return folder


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(tito, ["check", *map(str, arguments)])


def test_an_exact_tokenizer_ends_with_0(saved: Path) -> None:
    result = run(saved)
    assert result.exit_code == 0, result.output
    assert "renderer qwen3" in result.output and "every boundary is exact" in result.output
    assert "parallel calls" in result.output and "turn cut off" in result.output


def test_json_names_every_boundary(saved: Path, tmp_path: Path) -> None:
    tools = [{"name": "only", "description": "One.", "inputSchema": {"type": "object"}}]
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"tools": tools}))
    result = run(saved, "--tools", file, "--json", "--renderer", "template:hermes")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["schema"] == 1 and report["ok"] and report["renderer"] == "template:hermes"
    huge = [b for b in report["boundaries"] if b["conversation"] == "huge observation"]
    assert [b["turn"] for b in huge] == [-1, 0, 1] and huge[1]["tokens"] > 10_000


def test_a_template_that_drops_reasoning_is_still_exact_where_it_appends(
    small: Any, catalogue: ToolCatalogue, real_tokenizer: Any
) -> None:
    tokenizer = real_tokenizer("qwen3")
    report = check(tokenizer, load_renderer(tokenizer, tools=catalogue), catalogue)
    assert report.ok
    found = {b.status for b in report.boundaries}
    assert found == {Status.EXACT, Status.APPENDED}


def test_what_is_not_exact_ends_with_1_and_shows_where(real_tokenizer: Any) -> None:
    folder = real_tokenizer("deepseek_v3").name_or_path
    result = run(folder, "--renderer", "deepseek-v3")
    assert result.exit_code == 1
    assert "differs" in result.output and "NOT exact" in result.output
    assert "the template has" in result.output and "tool▁output" in result.output


def test_a_template_without_an_exact_renderer_ends_with_1(saved: Path) -> None:
    template = saved / "chat_template.jinja"
    template.write_text(template.read_text().replace("# Tools", "# Instruments"))
    result = run(saved)
    assert result.exit_code == 1 and "renderer=template:PARSER" in result.output


@pytest.mark.parametrize("content", ["{}", "[{}]", "nonsense"])
def test_a_bad_tools_file_is_named(saved: Path, tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    result = run(saved, "--tools", file)
    assert result.exit_code == 1 and "bad.json is no list of tools" in result.output


def test_a_renderer_that_loses_a_newline_is_caught(small: Any, catalogue: ToolCatalogue) -> None:
    """The harness can fail: the oracle is the template, not the renderer."""
    honest = load_renderer(small, tools=catalogue)

    class Lossy:
        name, stop_token_ids = "lossy", honest.stop_token_ids
        start, parse = honest.start, honest.parse

        def extend(self, ledger: Any, messages: Any) -> list[int]:
            return honest.extend(ledger, messages)[1:]

    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "Four."}
    found = play("x", [question, answer, question], small, Lossy(), catalogue.for_model)
    assert found[-1].status is Status.DIFFERS and "in what was appended" in found[-1].detail


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
    result = run(tmp_path)
    assert result.exit_code == 1 and "no tokenizer files" in result.output


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("tokenizer_config.json", "[]", "must hold a JSON object, not []"),
        ("config.json", "[]", "must hold a JSON object, not []"),
        ("generation_config.json", "[]", "must hold a JSON object, not []"),
        ("tokenizer.json", "[]", "must hold a JSON object, not []"),
        ("tokenizer_config.json", "{", "is not valid JSON"),
        (
            "tokenizer_config.json",
            '{"eos_token": 5}',
            "eos_token must be the text of a token, not 5",
        ),
        ("tokenizer_config.json", '{"pad_token": []}', "pad_token must be the text of a token"),
    ],
)
def test_a_broken_file_is_named_in_one_line(
    saved: Path, name: str, content: str, shown: str
) -> None:
    (saved / name).write_text(content)
    result = run(saved)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.output.startswith(f"Error: {saved / name}") and shown in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("template", ["{{ raise_exception('no\\nway') }}", "{% if %}"])
@pytest.mark.parametrize("renderer", ["auto", "template:hermes"])
def test_a_template_that_fails_is_named_in_one_line(
    saved: Path, template: str, renderer: str
) -> None:
    (saved / "chat_template.jinja").write_text(template)
    result = run(saved, "--renderer", renderer)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.output.startswith("Error: ") and str(saved) in result.output
    assert len(result.output.splitlines()) == 1


def test_wrong_usage_ends_with_2() -> None:
    assert run("--nonsense").exit_code == 2
    assert run().exit_code == 2


def test_a_class_that_encodes_otherwise_than_its_file_is_passed_over(real_tokenizer: Any) -> None:
    tokenizer = real_tokenizer("deepseek_v3")
    text = "Two words, précisément: 数字"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


MARKED = """\
{%- for message in messages -%}<|{{ message.role }}|>
{%- if message.role == "assistant" %}</think>{% endif %}{{ message.content }}{% endfor -%}
{%- if add_generation_prompt %}<|assistant|><think>{% endif -%}
"""


def test_a_turn_that_the_next_message_ends_is_sampled_with_its_marker(
    small: Any, tmp_path: Path
) -> None:
    """GLM's kind: the template puts no stop token behind a turn, opens the reasoning for the
    model, and drops it from every earlier turn."""
    import copy

    tokenizer = copy.deepcopy(small)
    markers = ["<|system|>", "<|user|>", "<|assistant|>"]
    tokenizer.add_tokens(markers, special_tokens=True)
    tokenizer.chat_template = MARKED
    tokenizer.name_or_path = str(tmp_path)
    stops = {"eos_token_id": [tokenizer.convert_tokens_to_ids("<|user|>")]}
    (tmp_path / "generation_config.json").write_text(json.dumps(stops))
    renderer = load_renderer(tokenizer, tools=ToolCatalogue([]), name="template:hermes")
    report = check(tokenizer, renderer, ToolCatalogue([]))
    bad = [boundary for boundary in report.boundaries if not boundary.ok]
    assert not bad, bad
    assert Status.APPENDED in {boundary.status for boundary in report.boundaries}
