"""Choosing the renderer of a tokenizer."""

from __future__ import annotations

import functools
import logging
from typing import Any

from . import library, probes
from .tools import ToolCatalogue
from .turn import (
    CannotBridge,
    Message,
    ParsedCall,
    ParsedTurn,
    Renderer,
    RendererError,
)

__all__ = [
    "CannotBridge",
    "Message",
    "ParsedCall",
    "ParsedTurn",
    "Renderer",
    "RendererError",
    "load_renderer",
]

logger = logging.getLogger(__name__)

TEMPLATE = "template"


@functools.lru_cache(maxsize=32)
def load_renderer(
    tokenizer: Any, *, tools: ToolCatalogue, name: str = "auto", model_name: str = ""
) -> Renderer:
    """The renderer for ``tokenizer`` and ``tools``; cached, since trials of one world share both.

    ``name`` is ``auto``, a name of the ``renderers`` library (``qwen3``, ``glm-4.5``, …), or
    ``template:PARSER`` for the tokenizer's own chat template with a named parser. ``auto`` takes
    the library's renderer for ``model_name`` or the tokenizer's own name; failing that, the first
    one that renders every probe conversation exactly as the tokenizer's chat template does.

    :raises RendererError: an unknown name (lists the known ones), or no exact renderer.
    """
    kind, _, parser = name.partition(":")
    if kind == TEMPLATE:
        from .template import TemplateRenderer

        return TemplateRenderer(tokenizer, tools, parser=parser)
    if name == "auto":
        name = _choose(tokenizer, model_name)
    elif name not in library.names():
        raise RendererError(
            f"unknown renderer {name!r}; known: auto, {', '.join(library.names())}, template:PARSER"
        )
    return library.LibraryRenderer(_checked(tokenizer, name), name, tools)


@functools.lru_cache(maxsize=32)
def _choose(tokenizer: Any, model_name: str) -> str:
    by_name = library.name_for_model(model_name, str(tokenizer.name_or_path))
    if by_name is not None:
        logger.info(
            "renderer %s for %s, by its name", by_name, model_name or tokenizer.name_or_path
        )
        return by_name
    if tokenizer.chat_template:
        for name in library.names():
            try:
                candidate = library.create(tokenizer, name)
            except RendererError:
                continue
            if not any(probes.differences(tokenizer, _render(candidate))):
                logger.info(
                    "renderer %s for %s: it renders as the chat template does",
                    name,
                    tokenizer.name_or_path,
                )
                return name
    raise RendererError(
        "no renderer of the renderers library renders as the chat template of "
        f"{tokenizer.name_or_path!r} does. Name the model's family "
        f"({', '.join(library.names())}), or use its own template with a parser: "
        "renderer=template:PARSER (see docs/tokens.md)"
    )


@functools.lru_cache(maxsize=32)
def _checked(tokenizer: Any, name: str) -> Any:
    """The library's renderer; the log says where it differs from the tokenizer's own template."""
    renderer = library.create(tokenizer, name)
    if tokenizer.chat_template:
        for difference in probes.differences(tokenizer, _render(renderer)):
            logger.warning(
                "renderer %s differs from the chat template of %s: %s",
                name,
                tokenizer.name_or_path,
                difference,
            )
            break
    return renderer


def _render(renderer: Any) -> Any:
    return lambda messages, tools: renderer.render_ids(
        [dict(message) for message in messages], tools=tools, add_generation_prompt=True
    )
