"""What an evaluation says, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skyrl_apex_plugin.rollout.metrics import PREFIX, plain_name, with_ratios

ALL = f"eval/all/{PREFIX}"


def evaluation_report(metrics: Mapping[str, Any]) -> str:
    """Graded of total, pass@1 over graded, and the lower bound that counts ungraded as failed.

    For all tasks, then for each world kind. ``metrics`` are those of SkyRL's ``evaluate``.
    """
    numbers = with_ratios(metrics)
    prefix = f"{ALL}kind/"
    kinds = sorted(
        key.removeprefix(prefix).removesuffix("/trials")
        for key in numbers
        if key.startswith(prefix) and key.endswith("/trials")
    )
    lines = [f"{'world kind':24} {'graded':>11} {'pass@1':>8} {'lower bound':>12} {'score':>7}"]
    graded, total = numbers.get(f"{ALL}graded/trials", 0), numbers.get(f"{ALL}trials/ended", 0)
    passed, score = numbers.get(f"{ALL}graded/passed", 0), numbers.get(f"{ALL}graded/score", 0)
    lines.append(_line("all", graded, total, passed, score))
    for kind in kinds:
        values = [
            numbers.get(f"{prefix}{kind}/{name}", 0)
            for name in ("graded", "trials", "passed", "score")
        ]
        lines.append(_line(plain_name(kind), *values))
    outcomes = {
        key.removeprefix(f"{ALL}outcome/"): int(value)
        for key, value in sorted(numbers.items())
        if key.startswith(f"{ALL}outcome/")
    }
    lines.append(
        "outcomes: " + ", ".join(f"{plain_name(name)} {count}" for name, count in outcomes.items())
    )
    return "\n".join(lines)


def _line(name: str, graded: float, total: float, passed: float, score: float) -> str:
    def share(above: float, below: float) -> str:
        return f"{above / below:.3f}" if below else "-"

    return (
        f"{name:24} {f'{graded:g}/{total:g}':>11} {share(passed, graded):>8} "
        f"{share(passed, total):>12} {share(score, graded):>7}"
    )
