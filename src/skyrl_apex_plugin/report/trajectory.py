"""What the page of one trajectory shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyrl_apex_plugin.report.run import read_object

LONGEST_TEXT = 20_000
"""Characters of one message or tool result on a page; the middle of longer ones is left out."""

Decode = Callable[[int], str]


def trajectory_page(trial_dir: Path, decode: Decode | None) -> dict[str, Any]:
    """Everything on record of a trial, ready for the page; parts that are not there are null.

    :param decode: text of one token ID; without it tokens are shown by their IDs.
    """
    from skyrl_apex_plugin.agent.record import read_turns

    try:
        lines = read_turns(trial_dir)
    except FileNotFoundError:
        lines = []
    start = next((line for line in lines if line["kind"] == "start"), None)
    return {
        "outcome": read_object(trial_dir / "outcome.json"),
        "verdict": read_object(trial_dir / "verifier" / "verdict.json"),
        "reward": read_object(trial_dir / "verifier" / "reward_terms.json"),
        "prompt": [
            {"role": message.get("role"), "text": shorten(_text(message.get("content")))}
            for message in (start or {}).get("messages", ())
        ],
        "turns": _turns(lines),
        "tokens": _tokens(trial_dir / "agent" / "tokens.apex", decode),
    }


def shorten(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _turns(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Model turns, each with the results of its calls."""
    turns: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == "model":
            turns.append(
                {
                    "content": shorten(line.get("content") or ""),
                    "reasoning": shorten(line.get("reasoning") or ""),
                    "calls": line.get("calls") or [],
                    "malformed": line.get("malformed"),
                    "finish": line.get("finish"),
                    "seconds": line.get("seconds"),
                    "results": [],
                }
            )
        elif line["kind"] == "tools" and turns:
            turns[-1]["results"] = [
                {**result, "text": shorten(result.get("text") or "")}
                for result in line.get("results", ())
            ]
    return turns


def _tokens(path: Path, decode: Decode | None) -> dict[str, Any] | None:
    """Token IDs with the text of each ID that occurs, logprobs, and turn offsets."""
    if not path.exists():
        return None
    from skyrl_apex_plugin.tito.ledger import LedgerError, TokenLedger

    try:
        ledger = TokenLedger.load(path)
    except LedgerError as error:
        return {"error": str(error)}
    texts = {} if decode is None else {token: decode(token) for token in set(ledger.tokens)}
    return {
        "ids": list(ledger.tokens),
        "texts": texts,
        "logprobs": [round(value, 3) for value in ledger.logprobs],
        "prompt_length": ledger.prompt_length,
        "turns": [
            {
                "start": turn.start,
                "end": turn.end,
                "observation_end": turn.observation_end or turn.end,
                "weight_version": turn.weight_version,
            }
            for turn in ledger.turns
        ],
    }


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in content)
    return str(content or "")
