"""The model's tokenizer and how conversations become tokens: the Qwen3 family's form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyrl_apex_miniworld.gateway.apps import APPS
from skyrl_apex_miniworld.gateway.catalogue import BundledServer, Catalogue
from skyrl_apex_miniworld.gateway.world import open_world
from skyrl_apex_miniworld.tasks import ALLOWED_TOOLS, SERVERS
from skyrl_apex_miniworld.tiny_model.demonstrations import Demonstration

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
CONTEXT = 4096
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Tokens of their own that are text all the same."""

PIECES = r"[A-Z]+[a-z]*|[0-9]|\n|[^A-Z0-9\n]+"
"""What merges stay within: a capitalised word, one digit, one newline, any run of other
characters. Names and digits are the same tokens wherever they stand, so they can be copied.
Newlines stand alone as in the family's own tokenizers, whose renderer encodes up to them."""

LONGEST_TOKEN = 24
"""Characters of the longest token; without a limit all of a tool's schema would become one."""

PROMPT_SHARE = 50
"""One text in so many is a whole prompt with the tool catalogue, when merges are learned."""


def offered_tools() -> list[dict[str, Any]]:
    """The tools that tasks show, as function specs without the envelope."""
    world = open_world("/nonexistent")
    servers = {name: BundledServer(APPS[name](world)) for name in SERVERS}
    return [_function(tool) for tool in Catalogue(servers, ALLOWED_TOOLS).tools()]


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool["inputSchema"]
    if list(schema["properties"]) == ["request"]:
        schema = schema["properties"]["request"]
    function = {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": schema,
    }
    return {"type": "function", "function": function}


def train_tokenizer(demonstrations: Iterable[Demonstration]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learned from the text of demonstrations."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=list(SPECIAL_TOKENS),
        max_token_length=LONGEST_TOKEN,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(demonstrations), trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    wrapped: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = chat_template()
    return wrapped


def chat_template() -> str:
    """The model's chat template."""
    return (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def _texts(demonstrations: Iterable[Demonstration]) -> Iterator[str]:
    """What stands between special tokens, as the renderer encodes it."""
    import re

    import jinja2

    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(chat_template())
    tools = offered_tools()
    specials = re.compile("|".join(map(re.escape, (*SPECIAL_TOKENS, *MARKERS))))
    for number, each in enumerate(demonstrations):
        messages = [{"role": "system", "content": each.system}] if each.system else []
        messages.append({"role": "user", "content": each.user})
        for turn in each.turns:
            messages.append({"role": "assistant", "content": turn.text})
            if turn.observation is not None:
                messages.append({"role": "tool", "content": turn.observation})
        shown = tools if number % PROMPT_SHARE == 0 else None
        yield from specials.split(template.render(messages=messages, tools=shown))


class Dialect:
    """Conversations as token IDs, through the Qwen3 renderer that the agent uses too."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from renderers.configs import Qwen3RendererConfig
        from renderers.qwen3 import Qwen3Renderer

        self.tokenizer = tokenizer
        self.tools = offered_tools()
        self._renderer = Qwen3Renderer(tokenizer, Qwen3RendererConfig())
        self.padding: int = tokenizer.vocab["<|endoftext|>"]
        self._stop: int = tokenizer.vocab["<|im_end|>"]

    def prompt(self, system: str, user: str) -> list[int]:
        """Tokens before the first turn."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        ids: list[int] = self._renderer.render_ids(
            messages, tools=self.tools, add_generation_prompt=True
        )
        return ids

    def turn(self, text: str) -> list[int]:
        """Tokens of a turn, its stop token included."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self._stop]

    def observation(self, prompt: list[int], turn: list[int], text: str) -> list[int]:
        """Tokens between a turn that called a tool and the next turn."""
        bridged = self._renderer.bridge_to_next_turn(
            prompt, turn, [{"role": "tool", "content": text}], tools=self.tools
        )
        if bridged is None:
            raise ValueError(f"the renderer cannot go on after {turn!r}")
        ids: list[int] = bridged.token_ids
        return ids[len(prompt) + len(turn) :]

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """Tokens of a whole demonstration, and 1 for each that the model says."""
        ids = self.prompt(demonstration.system, demonstration.user)
        mask = [0] * len(ids)
        for turn in demonstration.turns:
            said = self.turn(turn.text)
            seen = [] if turn.observation is None else self.observation(ids, said, turn.observation)
            ids = [*ids, *said, *seen]
            mask += [1] * len(said) + [0] * len(seen)
        return ids, mask
