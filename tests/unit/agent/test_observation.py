from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from skyrl_apex_plugin.agent.observation import EMPTY, render

PNG = b"\x89PNG\r\n\x1a\n" + bytes(10)
IMAGE = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_text_blocks_are_joined() -> None:
    assert render([text("a"), text("b")]).text == "a\nb"


def test_structured_content_shows_only_without_text() -> None:
    assert render([text("shown")], {"a": 1}).text == "shown"
    assert json.loads(render([], {"a": None}).text) == {"a": None}


@pytest.mark.parametrize("content", [[], [text("")], [text("  \n ")]])
def test_nothing_is_said_to_be_nothing(content: list[dict[str, Any]]) -> None:
    assert render(content).text == EMPTY


def test_an_image_is_a_placeholder_for_text_only_models() -> None:
    rendered = render([IMAGE])
    assert rendered.images == ()
    assert "image/png" in rendered.text and f"{len(PNG)} bytes" in rendered.text


def test_an_image_is_kept_for_models_that_take_it() -> None:
    assert render([text("see"), IMAGE], accept_images=True).images == (PNG,)


def test_a_broken_image_is_a_placeholder_not_an_exception() -> None:
    rendered = render([{"type": "image", "data": "not base64!"}], accept_images=True)
    assert rendered.images == () and "image" in rendered.text


def test_undecodable_text_can_be_tokenized() -> None:
    assert render([text("caf\udce9 ü")]).text == "caf? ü"


def test_resources_and_unknown_blocks_have_a_text() -> None:
    rendered = render(
        [
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AA=="}},
            {"type": "resource_link", "name": "c", "uri": "file:///c"},
            {"type": "hologram"},
        ]
    )
    assert "inside" in rendered.text
    assert all(word in rendered.text for word in ("file:///b", "file:///c", "hologram"))


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ('{"error": "no such file"}', True),
        ('{"error": {"code": 4}, "rows": null}', True),
        ('{"error": null, "rows": [1]}', False),
        ('{"error": "", "rows": [1]}', False),
        ('{"rows": [{"error": "a cell"}]}', False),
        ('["error"]', False),
        ("error: grep found this line", False),
        ('{"error": cut', False),
    ],
)
def test_an_application_error_that_came_as_a_success(answer: str, failed: bool) -> None:
    assert render([text(answer)]).is_error is failed


def test_a_structured_application_error_counts_too() -> None:
    assert render([text("could not")], {"error": "no"}).is_error


def test_five_megabytes_of_one_line_are_quick() -> None:
    import time

    started = time.process_time()
    rendered = render([text('{"a": "' + "x" * 5_000_000 + '"}')])
    assert len(rendered.text) > 5_000_000
    assert time.process_time() - started < 0.5
