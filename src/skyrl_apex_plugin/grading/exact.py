"""Grader ``exact``: programmatic checks of the answer and of files in the sandbox, no judge."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from typing import Any, Literal

from skyrl_apex_hookspecs import CriterionResult, FinishedTrial, Verdict, VerifierError

KINDS = ("equals", "contains", "regex", "number", "file")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?")


class ExactGrader:
    """Scores a trial by checks, from the configuration or from the task's ``tests/exact.json``.

    A check is an object with a ``kind`` and its fields; ``weight`` (default 1), ``id`` and
    ``primary`` are optional:

    - ``equals``: the answer, without surrounding space, is ``value``
    - ``contains``: the answer contains ``value``
    - ``regex``: ``value`` matches somewhere in the answer
    - ``number``: the answer's last number is within ``tolerance`` (default 1e-6, relative to
      ``value``) of ``value``; thousands separators are understood
    - ``file``: ``path`` exists in the sandbox and, where given, contains ``value``

    ``equals`` and ``contains`` ignore case with ``"ignore_case": true``. A trial without an
    answer fails the checks of the answer.

    :param checks: checks for every task; without them each task brings its own file.
    :param scoring: ``mean`` (weighted) or ``all`` (1.0 when every check holds, else 0.0).
    """

    def __init__(
        self,
        *,
        checks: Sequence[dict[str, Any]] | None = None,
        scoring: Literal["mean", "all"] = "mean",
    ) -> None:
        if scoring not in ("mean", "all"):
            raise ValueError(f"grader exact: scoring={scoring!r}; known: mean, all")
        self._checks = list(checks) if checks is not None else None
        self._scoring = scoring

    async def grade(self, trial: FinishedTrial) -> Verdict:
        """Run the checks. Raises ``VerifierError`` when they are missing or faulty."""
        checks = self._checks if self._checks is not None else _checks_of_task(trial)
        if not checks:
            raise VerifierError("grader exact: the list of checks is empty")
        criteria = tuple([await _run(check, number, trial) for number, check in enumerate(checks)])
        scores = [each.score or 0.0 for each in criteria]
        if self._scoring == "all":
            score = float(all(scores))
        else:
            weights = [each.weight for each in criteria]
            score = math.fsum(map(float.__mul__, weights, scores)) / math.fsum(weights)
        return Verdict(grader="exact", score=score, criteria=criteria)


def _checks_of_task(trial: FinishedTrial) -> list[dict[str, Any]]:
    path = trial.task.directory / "tests" / "exact.json"
    try:
        checks: list[dict[str, Any]] = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise VerifierError(
            f"grader exact: no {path}; write one, or give apex.grader.kwargs.checks"
        ) from error
    except ValueError as error:
        raise VerifierError(f"grader exact: {path} is not JSON: {error}") from error
    return checks


async def _run(check: dict[str, Any], number: int, trial: FinishedTrial) -> CriterionResult:
    try:
        kind = check["kind"]
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
        if kind == "file":
            passed = await _file(check, trial)
        else:
            passed = _answer(kind, check, trial)
        weight = float(check.get("weight", 1.0))
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise VerifierError(f"grader exact: check {number} ({check!r}): {error!r}") from error
    return CriterionResult(
        criterion_id=str(check.get("id", number)),
        score=float(passed),
        criteria=f"{kind} {check.get('path', '')} {check.get('value', '')}".strip(),
        primary=bool(check.get("primary", False)),
        weight=weight,
    )


def _answer(kind: str, check: dict[str, Any], trial: FinishedTrial) -> bool:
    value, answer = check["value"], trial.answer
    if answer is None and trial.trajectory is None:
        # An agent of another make that recorded nothing is not an agent that said nothing.
        raise VerifierError("grader exact: the agent left no answer on record")
    if answer is None:
        return False
    if kind == "regex":
        return re.search(value, answer) is not None
    if kind == "number":
        numbers = NUMBER.findall(answer)
        return bool(numbers) and math.isclose(
            float(numbers[-1].replace(",", "")),
            float(value),
            rel_tol=float(check.get("tolerance", 1e-6)),
            abs_tol=1e-9,
        )
    value = str(value)
    if check.get("ignore_case", False):
        answer, value = answer.casefold(), value.casefold()
    return answer.strip() == value.strip() if kind == "equals" else value in answer


async def _file(check: dict[str, Any], trial: FinishedTrial) -> bool:
    """Whether the file is there and holds the value. ``grep`` and ``test`` answer 0 or 1."""
    path = shlex.quote(check["path"])
    command = f"test -f {path}"
    if "value" in check:
        if "\n" in str(check["value"]):
            raise ValueError("a file check looks for one line")
        command += f" && grep -qF -e {shlex.quote(str(check['value']))} -- {path}"
    result = await trial.environment.exec(command=command)
    if result.return_code not in (0, 1):
        raise VerifierError(
            f"grader exact: {command!r} ended with exit code {result.return_code} in the "
            f"sandbox: {result.stderr or result.stdout}"
        )
    return bool(result.return_code == 0)
