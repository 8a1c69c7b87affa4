"""Grader ``rubric``: a panel of LLM judges over the task's criteria."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from skyrl_apex_hookspecs import CriterionResult, FinishedTrial, Verdict, VerifierError

from .cache import JudgementCache
from .endpoint import DEFAULT_MODEL, PermanentFault, make_endpoint
from .judge import Judge, JudgeFailed, Patience, Usage, real_number, whole_number
from .prompt import Judgement, question
from .rubric import Criterion, load_rubric
from .snapshots import BEFORE, Change, changes_in, shorten

JUDGE_SETTINGS = ("model", "base_url", "api_key_env", "extra_body", "price")
DEFAULT_CACHE = Path("~/.cache/skyrl-apex/judgements")


@dataclass(frozen=True, slots=True)
class _Work:
    """What is graded: the agent's answer and, for tasks with snapshots, its changes to files."""

    answer: str
    changes: tuple[Change, ...] | None

    def as_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"final_answer": self.answer}
        if self.changes is not None:
            document["files"] = [
                {"path": each.path, "change": each.kind, "content": each.text}
                for each in self.changes
            ]
        return document


class RubricGrader:
    """Asks a judge about each criterion of ``tests/verifiers.json``; the score is their mean.

    A judge that gives no valid judgement within its tries gives no score either: the verdict is
    an error, never 0. With several judges a criterion holds when more than half of the whole
    panel say so.

    :param judges: one entry for each judge of the panel: ``model``, ``base_url``,
        ``api_key_env``, ``extra_body`` (all optional; see ``make_endpoint``) and ``price``
        (US dollars for a million prompt and completion tokens). By default one judge, of
        ``GRADING_MODEL``. The number must be odd.
    :param criterion_errors: ``refuse`` (no score when any criterion could not be judged) or
        ``skip`` (mean over the rest).
    :param concurrency: criteria asked at once of one endpoint, over all trials of the process.
    :param patience: ``tries``, ``timeout``, ``deadline``, ``first_wait``, ``longest_wait``.
    :param cache_dir: where judgements are kept; ``None`` keeps none.
    :param longest_answer: characters of the final answer that a judge sees.
    :param longest_file: characters of one changed file that a judge sees.
    :param snapshot: path of the first snapshot inside the sandbox.
    """

    optional_env = ("GRADING_MODEL",)

    @staticmethod
    def needed_env(
        env: Mapping[str, str], *, judges: Sequence[Mapping[str, Any]] = ({},), **_: Any
    ) -> list[str]:
        """Keys of the judges: the one that each names, else Google's for a Gemini model."""
        keys = []
        for judge in judges:
            model = judge.get("model") or env.get("GRADING_MODEL") or DEFAULT_MODEL
            google = model.startswith("gemini/") and not judge.get("base_url")
            keys.append(judge.get("api_key_env") or ("GOOGLE_API_KEY" if google else None))
        return [key for key in keys if key]

    def __init__(
        self,
        *,
        judges: Sequence[Mapping[str, Any]] = ({},),
        criterion_errors: Literal["refuse", "skip"] = "refuse",
        concurrency: int = 10,
        temperature: float = 0.0,
        patience: Mapping[str, Any] | None = None,
        cache_dir: str | Path | None = DEFAULT_CACHE,
        longest_answer: int = 200_000,
        longest_file: int = 50_000,
        snapshot: str = BEFORE,
    ) -> None:
        if len(judges) % 2 == 0:
            raise ValueError(f"grader rubric: {len(judges)} judges; an odd number has a majority")
        if criterion_errors not in ("refuse", "skip"):
            raise ValueError(
                f"grader rubric: criterion_errors={criterion_errors!r}; known: refuse, skip"
            )
        self._judges = [_judge_settings(each) for each in judges]
        self._skip_failed_criteria = criterion_errors == "skip"
        self._concurrency = whole_number("concurrency", concurrency)
        self._temperature = real_number("temperature", temperature)
        self._patience = _patience(patience or {})
        self._cache = JudgementCache(Path(cache_dir).expanduser()) if cache_dir else None
        self._longest_answer = whole_number("longest_answer", longest_answer)
        self._longest_file = whole_number("longest_file", longest_file)
        self._snapshot = snapshot

    async def grade(self, trial: FinishedTrial) -> Verdict:
        """Judge every criterion. Raises ``VerifierError`` when the task or its files are faulty."""
        rubric = load_rubric(trial.task.directory)
        work = await self._work(trial)
        usage = Usage()
        panel = self._panel(trial, usage)
        try:
            results = await _all(
                self._criterion(panel, criterion, trial, rubric.golden_responses, work)
                for criterion in rubric.criteria
            )
        finally:
            for judge in panel:
                await judge.endpoint.aclose()
        return self._verdict(results, usage)

    async def _work(self, trial: FinishedTrial) -> _Work:
        changes = None
        if trial.task.needs_snapshot:
            changes = tuple(
                await changes_in(
                    trial.environment, before=self._snapshot, longest=self._longest_file
                )
            )
        if trial.answer is None and trial.trajectory is None and not changes:
            # An agent of another make that recorded nothing is not an agent that said nothing.
            raise VerifierError("the agent left no answer on record, so there is nothing to judge")
        return _Work(shorten(trial.answer or "", self._longest_answer), changes)

    def _panel(self, trial: FinishedTrial, usage: Usage) -> list[Judge]:
        env = {**os.environ, **trial.env}
        panel = []
        for seat, settings in enumerate(self._judges):
            price = settings["price"]
            where = {name: value for name, value in settings.items() if name != "price"}
            try:
                endpoint = make_endpoint(env=env, timeout=self._patience.timeout, **where)
            except PermanentFault as error:
                raise VerifierError(str(error)) from error
            panel.append(
                Judge(
                    endpoint=endpoint,
                    patience=self._patience,
                    usage=usage,
                    concurrency=self._concurrency,
                    temperature=self._temperature,
                    price=price,
                    cache=self._cache,
                    seat=seat,
                )
            )
        return panel

    async def _criterion(
        self,
        panel: list[Judge],
        criterion: Criterion,
        trial: FinishedTrial,
        golden_responses: tuple[str, ...],
        work: _Work,
    ) -> CriterionResult:
        if criterion.file_types and not _has_file(criterion, work):
            wanted = " or ".join(criterion.file_types)
            return _result(criterion, 0.0, f"the agent produced no {wanted} file")
        if not work.answer.strip() and not work.changes:
            return _result(criterion, 0.0, "the agent gave no answer and changed no file")
        messages = question(
            task=trial.task.instruction,
            criterion=criterion.text,
            golden_responses=golden_responses,
            answer=work.as_document(),
        )
        votes = await asyncio.gather(
            *(judge.judge(messages) for judge in panel), return_exceptions=True
        )
        return _majority(criterion, votes)

    def _verdict(self, results: tuple[CriterionResult, ...], usage: Usage) -> Verdict:
        failed = [each for each in results if each.score is None]
        scores = [each.score for each in results if each.score is not None]
        metrics = {**usage.metrics(), "criteria_failed": float(len(failed))}
        if failed and not (self._skip_failed_criteria and scores):
            reason = f"no judgement on {len(failed)} of {len(results)} criteria; first: "
            return Verdict(
                grader="rubric",
                error=f"{reason}{failed[0].criterion_id}: {failed[0].rationale}",
                criteria=results,
                metrics=metrics,
            )
        score = sum(scores) / len(scores)
        return Verdict(grader="rubric", score=score, criteria=results, metrics=metrics)


def _patience(settings: Mapping[str, Any]) -> Patience:
    known = [field.name for field in fields(Patience)]
    _only_known("patience", settings, known)
    return Patience(**settings)


def _judge_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    _only_known("a judge", settings, JUDGE_SETTINGS)
    price = settings.get("price", (0.0, 0.0))
    if not isinstance(price, Sequence) or isinstance(price, str) or len(price) != 2:
        raise ValueError(
            f"grader rubric: price={price!r}: expected US dollars for a million prompt tokens and "
            "for a million completion tokens"
        )
    return {**settings, "price": tuple(real_number("price", each) for each in price)}


def _only_known(what: str, settings: object, known: Sequence[str]) -> None:
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"grader rubric: settings of {what}: expected names and values, "
            f"found {type(settings).__name__}"
        )
    unknown = sorted(map(str, settings.keys() - set(known)))
    if unknown:  # names alone: a value may be a key
        raise ValueError(
            f"grader rubric: unknown settings of {what}: {', '.join(unknown)}; "
            f"known: {', '.join(known)}"
        )


async def _all(
    coroutines: Iterable[Coroutine[Any, Any, CriterionResult]],
) -> tuple[CriterionResult, ...]:
    """Results in order. The first failure cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return tuple(task.result() for task in tasks)


def _majority(criterion: Criterion, votes: Sequence[Judgement | BaseException]) -> CriterionResult:
    """More than half of the whole panel decide, so a judge that failed cannot tip the result."""
    for vote in votes:
        if isinstance(vote, BaseException) and not isinstance(vote, JudgeFailed):
            raise vote
    given = [vote for vote in votes if isinstance(vote, Judgement)]
    for met in (True, False):
        side = [vote for vote in given if vote.met is met]
        if 2 * len(side) > len(votes):
            return _result(criterion, float(met), side[0].rationale)
    reasons = "; ".join(str(vote) for vote in votes if isinstance(vote, JudgeFailed))
    return _result(criterion, None, reasons)


def _has_file(criterion: Criterion, work: _Work) -> bool:
    if work.changes is None:
        raise VerifierError(
            f"criterion {criterion.criterion_id!r} asks for a {'/'.join(criterion.file_types)} "
            "file, but the task takes no snapshots (needs_snapshot is false)"
        )
    return any(
        each.suffix in criterion.file_types for each in work.changes if each.kind != "deleted"
    )


def _result(criterion: Criterion, score: float | None, rationale: str) -> CriterionResult:
    return CriterionResult(
        criterion_id=criterion.criterion_id,
        score=score,
        status="error" if score is None else "ok",
        criteria=criterion.text,
        rationale=rationale,
        primary=criterion.primary,
    )
