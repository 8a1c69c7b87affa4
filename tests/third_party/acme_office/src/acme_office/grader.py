"""A grader that compares the answer with one word."""

from __future__ import annotations

from skyrl_apex_hookspecs import CriterionResult, FinishedTrial, Verdict


class AnswerGrader:
    def __init__(self, *, word: str = "42") -> None:
        self._word = word

    async def grade(self, trial: FinishedTrial) -> Verdict:
        if trial.answer is None:
            return Verdict(grader="acme-answer", error="the trial left no answer")
        score = float(trial.answer.strip() == self._word)
        result = CriterionResult(criterion_id="word", score=score, criteria=f"says {self._word}")
        return Verdict(grader="acme-answer", score=score, criteria=(result,))
