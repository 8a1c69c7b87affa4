"""Turns a tool's answer into the text, and images, that the model sees."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skyrl_apex_hookspecs import Observation, ToolCall
from skyrl_apex_plugin.discovery import hooks

EMPTY = "(the tool returned nothing)"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A tool result as text and decoded images, before hooks and truncation."""

    text: str
    images: tuple[bytes, ...] = ()
    is_error: bool = False


def render(
    content: Sequence[Mapping[str, Any]],
    structured: Any = None,
    *,
    is_error: bool = False,
    accept_images: bool = False,
) -> Rendered:
    """Render MCP content blocks (in their wire form) and structured content.

    Text blocks are joined by newlines; structured content is shown only when no block has any
    text, since servers repeat it there. Without ``accept_images`` an image becomes a placeholder
    that names its type and size. An answer that holds ``{"error": …}`` counts as an error even
    when the server calls it a success.
    """
    lines: list[str] = []
    images: list[bytes] = []
    for block in content:
        if block.get("type") == "image":
            data = _decode(block.get("data"))
            if accept_images and data:
                images.append(data)
            lines.append(_placeholder("image", block, data, shown=accept_images and bool(data)))
        else:
            lines.append(_block_text(block))
    text = "\n".join(line for line in lines if line)
    if not text.strip() and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    return Rendered(
        text=_printable(text) if text.strip() else EMPTY,
        images=tuple(images),
        is_error=is_error or is_application_error(text, structured),
    )


def observe(call: ToolCall, rendered: Rendered) -> Observation:
    """Run ``apex_transform_observation`` over a rendered answer.

    The hooks may change ``is_error``; whether the call counts as failed follows it.

    :raises SetupError: a hook raised.
    """
    observation = hooks.transform_observation(
        Observation(
            call=call, text=rendered.text, images=rendered.images, is_error=rendered.is_error
        )
    )
    error = observation.call.error
    if observation.is_error and error is None:
        error = observation.text[:300]
    return replace(
        observation,
        call=replace(
            observation.call,
            ok=not observation.is_error,
            error=error if observation.is_error else None,
        ),
    )


def is_application_error(text: str, structured: Any = None) -> bool:
    """Whether an answer that came as a success says itself that it failed.

    True for a JSON object whose ``error`` is set; unused fields come as null in these worlds, so
    ``{"error": null}`` is a success.
    """
    if isinstance(structured, Mapping) and structured.get("error"):
        return True
    # The quick look spares parsing megabytes of file content.
    head = text.lstrip()[:1]
    if head != "{" or '"error"' not in text[:4096]:
        return False
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and bool(found.get("error"))


def _block_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind == "resource":
        resource = block.get("resource") or {}
        if "text" in resource:
            return str(resource["text"])
        return _placeholder(f"resource {resource.get('uri', '')}", resource, None)
    if kind == "resource_link":
        return f"[resource {block.get('name', '')}: {block.get('uri', '')}]"
    return _placeholder(str(kind or "content"), block, _decode(block.get("data")))


def _placeholder(
    what: str, block: Mapping[str, Any], data: bytes | None, *, shown: bool = False
) -> str:
    size = "" if data is None else f", {len(data)} bytes"
    fate = "shown below" if shown else "not shown: only text is passed on"
    return f"[{what.strip()}: {block.get('mimeType') or 'unknown type'}{size}; {fate}]"


def _decode(data: Any) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except binascii.Error:
        return None


def _printable(text: str) -> str:
    """Replace what no tokenizer takes: lone surrogates that stand for undecodable bytes."""
    if text.isascii():
        return text
    return text.encode("utf-8", errors="replace").decode("utf-8")
