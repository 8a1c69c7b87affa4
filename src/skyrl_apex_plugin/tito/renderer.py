"""Choosing the renderer of a tokenizer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

from . import library, probes
from .parsers import check_parser_name
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
    "check_renderer_name",
    "load_renderer",
]

logger = logging.getLogger(__name__)

TEMPLATE = "template"
AUTO = "auto"


def check_renderer_name(name: str) -> None:
    """Refuse a name that :func:`load_renderer` takes for no tokenizer; none is loaded for it.

    :raises RendererError: a ``ValueError`` that lists the known names.
    """
    family, _, rest = name.partition(":")
    if family == TEMPLATE:
        check_parser_name(rest)
    elif name != AUTO and not (family in library.names() and name in library.variants(family)):
        raise RendererError(
            f"unknown renderer {name!r}; known: {AUTO}, {_known_names()}, {TEMPLATE}:PARSER"
        )


@functools.lru_cache(maxsize=32)
def load_renderer(
    tokenizer: Any, *, tools: ToolCatalogue, name: str = "auto", model_name: str = ""
) -> Renderer:
    """The renderer for ``tokenizer`` and ``tools``; cached, since trials of one world share both.

    ``name`` is ``auto``, a name of the ``renderers`` library (``qwen3``, ``glm-4.5``, …), or
    ``template:PARSER`` for the tokenizer's own chat template with a named parser. ``auto`` takes
    the library's renderer for ``model_name`` or the tokenizer's own name; failing that, the first
    one that renders every probe conversation exactly as the tokenizer's chat template does.

    :raises RendererError: an unknown name (lists the known ones), no exact renderer, or one whose
        rendering of a conversation does not start with that of its beginning.
    """
    check_renderer_name(name)
    family, _, rest = name.partition(":")
    if family == TEMPLATE:
        from .template import TemplateRenderer

        return TemplateRenderer(tokenizer, tools, parser=rest)
    chosen = _choose(tokenizer, model_name) if name == AUTO else _agreeing(tokenizer, name)
    return library.LibraryRenderer(tokenizer, chosen, tools)


@functools.lru_cache(maxsize=32)
def _choose(tokenizer: Any, model_name: str) -> str:
    by_name = library.name_for_model(model_name, str(tokenizer.name_or_path))
    if by_name is not None:
        logger.info("renderer %s for %s: by the model's name", by_name, model_name or "it")
        return _agreeing(tokenizer, by_name)
    if tokenizer.chat_template:
        for name in library.names():
            for variant in library.variants(name):
                if next(_differences(tokenizer, variant), None) is None:
                    logger.info(
                        "renderer %s for %s: it renders as the chat template does",
                        variant,
                        tokenizer.name_or_path,
                    )
                    return variant
    raise RendererError(
        "no renderer of the renderers library renders as the chat template of "
        f"{tokenizer.name_or_path!r} does. Name the model's family ({_known_names()}), or use its "
        "own template with a parser: renderer=template:PARSER (see docs/tokens.md)"
    )


@functools.lru_cache(maxsize=32)
def _agreeing(tokenizer: Any, name: str) -> str:
    """The variant of a named renderer that agrees with the tokenizer's own template.

    The name stands even where none does; the log then says where they differ. Raises
    :class:`RendererError` when the tokenizer lacks what the family needs.
    """
    library.create(tokenizer, name)
    if not tokenizer.chat_template:
        return name
    found = {v: next(_differences(tokenizer, v), None) for v in library.variants(name)}
    for variant, difference in found.items():
        if difference is None:
            return variant
    logger.warning(
        "renderer %s differs from the chat template of %s: %s",
        name,
        tokenizer.name_or_path,
        found[name],
    )
    return name


def _known_names() -> str:
    suffixes = " or ".join(library.THINKING)
    return f"{', '.join(library.names())} (some with {suffixes} behind)"


def _differences(tokenizer: Any, name: str) -> Iterator[str]:
    try:
        renderer = library.create(tokenizer, name)
    except RendererError as error:
        yield str(error)
        return
    yield from probes.differences(
        tokenizer,
        lambda messages, tools: renderer.render_ids(
            [dict(message) for message in messages], tools=tools, add_generation_prompt=True
        ),
    )
