"""Metrics of rollouts that survive SkyRL's folding.

``concatenate_generator_outputs`` folds a group's own metrics by substring of their key: keys with
``avg`` or ``mean`` are averaged, ``min`` and ``max`` taken, all others summed. So a generator
call reports nothing but sums, under ``apex/sum/…``, with keys that hold none of those words; the
ratios that people read are made from them when a step is logged (:func:`with_ratios`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from skyrl_apex_hookspecs import Outcome, Treatment

from .outcomes import FAULTS
from .rollout import Rollout

Sums = defaultdict[str, float]

PREFIX = "apex/sum/"

FOLDED = re.compile("avg|mean|max|min")
"""What SkyRL looks for in a key, wherever it stands."""

_ESCAPED = re.compile(r"a\.vg|m\.ean|m\.ax|m\.in")

RATIOS: tuple[tuple[str, str, str], ...] = (
    ("reward", "rewarded/reward", "rewarded/trials"),
    ("score", "graded/score", "graded/trials"),
    ("pass_at_1", "graded/passed", "graded/trials"),
    ("pass_at_1_lower_bound", "graded/passed", "trials/ended"),
    ("graded_fraction", "graded/trials", "trials/ended"),
    ("failed_fraction", "trials/failed", "trials/ended"),
    ("masked_fraction", "trials/masked", "trials/ended"),
    ("turns", "turns/all", "trials/ended"),
    ("malformed_turns_fraction", "turns/malformed", "turns/all"),
    ("response_tokens", "tokens/response", "trials/ended"),
    ("sampled_tokens", "tokens/sampled", "trials/ended"),
    ("tool_calls", "tools/calls", "trials/ended"),
    ("tool_success", "tools/ok", "tools/calls"),
)
"""``apex/<name>`` is the first sum over the second."""

PER_TRIAL = ("seconds/", "reward/")
"""Families of sums whose ratio to their trials is logged under their own name."""

KIND = re.compile(r"kind/(?P<kind>.+)/trials$")
_SUM = re.compile(r"^(?P<prefix>.*\bapex(?:_\w+)?/)sum/(?P<name>.+)$")


def metric_key(name: str) -> str:
    """``apex/sum/<name>`` that SkyRL sums, whatever words ``name`` (of a server, say) holds.

    >>> metric_key("server/admin/calls")
    'apex/sum/server/adm.in/calls'
    """
    return PREFIX + FOLDED.sub(lambda found: f"{found[0][0]}.{found[0][1:]}", name)


def plain_name(name: str) -> str:
    """The name behind a key of :func:`metric_key`; nothing folds it any more.

    >>> plain_name("server/adm.in/calls")
    'server/admin/calls'
    """
    return _ESCAPED.sub(lambda found: found[0].replace(".", ""), name)


def rollout_sums(
    rollouts: Iterable[Rollout], *, pass_score: float, training: bool
) -> dict[str, float]:
    """The sums of one generator call. Every count of :data:`RATIOS` is there, if only as 0.

    In training, rewards are those of trained rows: what a masked row would have got moves nothing.
    Scores are those of every graded trial, in evaluation rewards too.
    """
    sums: Sums = defaultdict(float, {name: 0.0 for ratio in RATIOS for name in ratio[1:]})
    groups: dict[str, bool] = {}
    for rollout in rollouts:
        _count_trial(sums, rollout, pass_score)
        if rollout.trained or not training:
            _count_reward(sums, rollout)
        _count_tokens(sums, rollout)
        groups[rollout.group] = groups.get(rollout.group, False) or rollout.trained
    sums["groups/all"] = len(groups)
    sums["groups/all_masked"] = sum(not trained for trained in groups.values())
    return {metric_key(name): float(value) for name, value in sums.items()}


def _count_trial(sums: Sums, rollout: Rollout, pass_score: float) -> None:
    failure, ended = rollout.failure, rollout.ended
    kind = f"kind/{rollout.kind}"
    sums["trials/ended"] += 1
    sums["trials/masked"] += not rollout.trained
    sums["trials/discarded"] += failure.treatment is Treatment.DISCARD
    sums["trials/failed"] += failure.outcome in FAULTS or failure.outcome is Outcome.AGENT_TIMEOUT
    sums["trials/retried"] += len(rollout.retried)
    sums[f"outcome/{failure.outcome.value}"] += 1
    for retried in rollout.retried:
        sums[f"retried/{retried.outcome.value}"] += 1
    sums[f"{kind}/trials"] += 1
    for name, seconds in ended.seconds.items():
        sums[f"seconds/{name.replace('/', '_')}"] += seconds
    if rollout.score is not None:
        passed = rollout.score >= pass_score
        for place in ("graded", kind):
            sums[f"{place}/passed"] += passed
            sums[f"{place}/score"] += rollout.score
        sums["graded/trials"] += 1
        sums[f"{kind}/graded"] += 1
        for name, value in ended.verdict.metrics.items() if ended.verdict else ():
            sums[f"grader/{name}"] += value


def _count_reward(sums: Sums, rollout: Rollout) -> None:
    if rollout.reward is not None:
        sums["rewarded/trials"] += 1
        sums["rewarded/reward"] += rollout.reward
        for term in rollout.terms:
            sums[f"reward/{term.name}"] += term.value


def _count_tokens(sums: Sums, rollout: Rollout) -> None:
    trajectory = rollout.ended.trajectory
    if trajectory is None:
        return
    sums["tokens/prompt"] += trajectory.prompt_length
    sums["tokens/response"] += len(trajectory.tokens) - trajectory.prompt_length
    sums["tokens/sampled"] += sum(trajectory.loss_mask)
    for turn in trajectory.turns:
        sums["turns/all"] += 1
        sums["turns/malformed"] += turn.malformed
        for call in turn.calls:
            sums["tools/calls"] += 1
            sums["tools/refused"] += not call.dispatched
            sums["tools/ok"] += call.dispatched and call.ok
            server = f"server/{call.server or 'unknown'}"
            sums[f"{server}/calls"] += 1
            sums[f"{server}/ok"] += call.dispatched and call.ok


def with_ratios(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """``metrics`` with the ratios of every family of sums in it.

    Sums stand under ``apex/sum/…``, also behind a prefix (``eval/all/apex/sum/…``) or with
    SkyRL's view of kept and dropped groups (``apex_kept/sum/…``). A ratio over nothing is left
    out: no graded trial has no pass rate, rather than 0.
    """
    families: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        found = _SUM.match(key)
        if found is not None:
            families.setdefault(found["prefix"], {})[found["name"]] = value
    result = dict(metrics)
    for prefix, sums in families.items():
        result.update({prefix + plain_name(name): value for name, value in _ratios(sums)})
    return result


def _ratios(sums: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    for name, above, below in RATIOS:
        yield from _ratio(name, sums.get(above, 0.0), sums.get(below, 0.0))
    for name, value in sums.items():
        if name.startswith(PER_TRIAL):
            below = "rewarded/trials" if name.startswith("reward/") else "trials/ended"
            yield from _ratio(name, value, sums.get(below, 0.0))
        elif found := KIND.match(name):
            kind = f"kind/{found['kind']}"
            passed, graded = sums.get(f"{kind}/passed", 0.0), sums.get(f"{kind}/graded", 0.0)
            yield from _ratio(f"{kind}/pass_at_1", passed, graded)
            yield from _ratio(f"{kind}/pass_at_1_lower_bound", passed, value)
            yield from _ratio(f"{kind}/graded_fraction", graded, value)
        elif name.startswith("server/") and name.endswith("/calls"):
            server = name.removesuffix("/calls")
            yield from _ratio(f"{server}/success", sums.get(f"{server}/ok", 0.0), value)


def _ratio(name: str, above: float, below: float) -> Iterable[tuple[str, float]]:
    if below:
        yield name, above / below
