"""Grader ``exact``: programmatic checks of the answer and of files in the sandbox, no judge."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from skyrl_apex_hookspecs import CriterionResult, FinishedTrial, Verdict, VerifierError

FIELDS = {
    "equals": {"value", "ignore_case"},
    "contains": {"value", "ignore_case"},
    "regex": {"value"},
    "number": {"value", "tolerance"},
    "file": {"path", "value"},
}
"""Kinds of checks with the fields of each."""
FIELDS_OF_ALL = {"kind", "id", "primary", "weight"}
NUMBER = re.compile(
    r"(?:(?<![\w%)])([-\u2212])[$€£¥]?)?"  # no sign but a range where a figure stands before it
    r"((?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)"
    r"(?:[eE]([-+\u2212]?\d+))?"
)
"""Sign, digits (with thousands separators) and exponent of a number in a text."""


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
        if self._checks is not None:
            checks, source = self._checks, "apex.grader.kwargs.checks"
        else:
            checks, source = _checks_of_task(trial)
        if not checks:
            raise VerifierError(f"grader exact: the list of checks is empty ({source})")
        for number, check in enumerate(checks):
            try:
                _validate(check)
            except (ValueError, OverflowError, re.error) as error:
                raise VerifierError(
                    f"grader exact: {source}: check {number} ({check!r}): {error}"
                ) from error
        criteria = tuple([await _run(check, number, trial) for number, check in enumerate(checks)])
        scores = [each.score or 0.0 for each in criteria]
        if self._scoring == "all":
            score = float(all(scores))
        else:
            weights = [each.weight for each in criteria]
            score = math.fsum(map(float.__mul__, weights, scores)) / math.fsum(weights)
        return Verdict(grader="exact", score=score, criteria=criteria)


def _checks_of_task(trial: FinishedTrial) -> tuple[list[dict[str, Any]], str]:
    """The task's checks, and the file that they come from."""
    path = trial.task.directory / "tests" / "exact.json"
    try:
        checks = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise VerifierError(
            f"grader exact: no {path}; write one, or give apex.grader.kwargs.checks"
        ) from error
    except ValueError as error:
        raise VerifierError(f"grader exact: {path} is not JSON: {error}") from error
    if not isinstance(checks, list):
        raise VerifierError(
            f"grader exact: {path}: expected a list of checks, found {type(checks).__name__}"
        )
    return checks, str(path)


def _validate(check: Any) -> None:
    """Raises ``ValueError`` for a check that could not tell right from wrong: a fault in it must
    not become a score."""
    if not isinstance(check, Mapping):
        raise ValueError("expected an object")
    kind = check.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(FIELDS)}")
    unknown = sorted(map(str, check.keys() - FIELDS[kind] - FIELDS_OF_ALL))
    if unknown:
        known = ", ".join(sorted(FIELDS[kind] | FIELDS_OF_ALL))
        raise ValueError(f"unknown fields {', '.join(unknown)} of kind {kind}; known: {known}")
    needed = "path" if kind == "file" else "value"
    if needed not in check:
        raise ValueError(f"{needed} is missing")
    for flag in ("ignore_case", "primary"):
        if not isinstance(check.get(flag, False), bool):
            raise ValueError(f"{flag}={check[flag]!r}: expected true or false")
    if _finite(check, "weight", 1.0) <= 0:
        raise ValueError(f"weight={check['weight']!r}: expected a number above 0")
    if kind == "number":
        if _finite(check, "tolerance", 0.0) < 0:
            raise ValueError(f"tolerance={check['tolerance']!r}: expected 0 or more")
        _expected_number(check)
    else:
        _validate_text(kind, check)


def _validate_text(kind: str, check: Mapping[str, Any]) -> None:
    value = check.get("value", "")
    if not isinstance(value, str) and not (kind != "regex" and _is_number(value)):
        raise ValueError(f"value={value!r}: expected a text")
    if kind == "regex":
        re.compile(value)
    if kind == "file":
        if not isinstance(check["path"], str) or not check["path"].strip():
            raise ValueError(f"path={check['path']!r}: expected a path in the sandbox")
        if "\n" in str(value):
            raise ValueError("a file check looks for one line")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _finite(check: Mapping[str, Any], field: str, default: float) -> float:
    value = check.get(field, default)
    if not _is_number(value):
        raise ValueError(f"{field}={value!r}: expected a finite number")
    return float(value)


def _expected_number(check: Mapping[str, Any]) -> float:
    """The value of a ``number`` check, which may be written as a text."""
    value = check["value"]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"value={value!r}: expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"value={value!r}: expected a finite number")
    return number


async def _run(check: Mapping[str, Any], number: int, trial: FinishedTrial) -> CriterionResult:
    kind = check["kind"]
    passed = await _file(check, trial) if kind == "file" else _answer(kind, check, trial)
    return CriterionResult(
        criterion_id=str(check.get("id", number)),
        score=float(passed),
        criteria=f"{kind} {check.get('path', '')} {check.get('value', '')}".strip(),
        primary=check.get("primary", False),
        weight=float(check.get("weight", 1.0)),
    )


def _answer(kind: str, check: Mapping[str, Any], trial: FinishedTrial) -> bool:
    value, answer = check["value"], trial.answer
    if answer is None and trial.trajectory is None:
        # An agent of another make that recorded nothing is not an agent that said nothing.
        raise VerifierError("grader exact: the agent left no answer on record")
    if answer is None:
        return False
    if kind == "regex":
        return re.search(value, answer) is not None
    if kind == "number":
        found = _last_number(answer)
        return found is not None and math.isclose(
            found,
            _expected_number(check),
            rel_tol=float(check.get("tolerance", 1e-6)),
            abs_tol=1e-9,
        )
    value = str(value)
    if check.get("ignore_case", False):
        answer, value = answer.casefold(), value.casefold()
    return answer.strip() == value.strip() if kind == "equals" else value in answer


def _last_number(text: str) -> float | None:
    found = list(NUMBER.finditer(text))
    if not found:
        return None
    sign, digits, exponent = found[-1].groups(default="")
    number = float(f"{digits.replace(',', '')}e{exponent.replace('\u2212', '-') or 0}")
    return -number if sign else number


async def _file(check: Mapping[str, Any], trial: FinishedTrial) -> bool:
    """Whether the file is there and holds the value. ``grep`` and ``test`` answer 0 or 1."""
    path = shlex.quote(check["path"])
    command = f"test -f {path}"
    if "value" in check:
        command += f" && grep -qF -e {shlex.quote(str(check['value']))} -- {path}"
    result = await trial.environment.exec(command=command)
    if result.return_code not in (0, 1):
        raise VerifierError(
            f"grader exact: {command!r} ended with exit code {result.return_code} in the "
            f"sandbox: {result.stderr or result.stdout}"
        )
    return bool(result.return_code == 0)
