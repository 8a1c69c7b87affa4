"""vLLM's own parsers against the renderer's on the turns that a run sampled.

``python parsers.py MODEL_DIR TRIALS_DIR``: reads every ``agent/tokens.apex``, parses each sampled
turn with the renderer that the agent used and with vLLM's ``hermes`` tool parser, and lists the
disagreements.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from skyrl_apex_miniworld.tiny_model.dialect import offered_tools
from skyrl_apex_plugin.tito.ledger import TokenLedger
from skyrl_apex_plugin.tito.renderer import load_renderer
from skyrl_apex_plugin.tito.tokenizer import load_tokenizer
from skyrl_apex_plugin.tito.tools import ToolCatalogue


def catalogue() -> ToolCatalogue:
    return ToolCatalogue(
        [
            {
                "name": spec["function"]["name"],
                "description": spec["function"]["description"],
                "inputSchema": spec["function"]["parameters"],
            }
            for spec in offered_tools()
        ]
    )


def vllm_calls(parser: Any, text: str) -> list[tuple[str, Any]]:
    found = parser.extract_tool_calls(text, None)
    return [(c.function.name, json.loads(c.function.arguments)) for c in found.tool_calls]


def main(model: str, trials: Path) -> None:
    try:
        from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
    except ImportError:
        from vllm.entrypoints.openai.tool_parsers import Hermes2ProToolParser
    tokenizer = load_tokenizer(model)
    renderer = load_renderer(tokenizer, tools=catalogue())
    parser = Hermes2ProToolParser(tokenizer)
    counts: Counter[str] = Counter()
    for path in sorted(trials.glob("*/agent/tokens.apex")):
        ledger = TokenLedger.load(path)
        for turn in ledger.turns:
            ids = list(ledger.tokens[turn.start : turn.end])
            parsed = renderer.parse(ids)
            ours = [(call.name, dict(call.arguments)) for call in parsed.calls if not call.error]
            text = tokenizer.decode([i for i in ids if i not in renderer.stop_token_ids])
            theirs = vllm_calls(parser, text)
            counts["turns"] += 1
            counts["turns with calls"] += bool(ours or theirs)
            if ours != theirs:
                counts["disagreements"] += 1
                if counts["disagreements"] <= 20:
                    print(json.dumps({"text": text, "renderer": ours, "vllm": theirs}))
    print("parsers:", json.dumps(dict(counts)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
