"""From an ended trial to what is done with it: trained, masked, retried or discarded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from skyrl_apex_hookspecs import EndedTrial, Failure, Outcome, Treatment
from skyrl_apex_plugin.discovery.hooks import classify_failure

TREATMENTS: Mapping[Outcome, Treatment] = {
    Outcome.COMPLETE: Treatment.TRAIN,
    Outcome.LENGTH: Treatment.TRAIN,
    Outcome.MAX_TURNS: Treatment.TRAIN,
    Outcome.CONTEXT_LENGTH: Treatment.TRAIN,
    Outcome.AGENT_TIMEOUT: Treatment.MASK,
    Outcome.SETUP_ERROR: Treatment.RETRY,
    Outcome.TOOL_SESSION_LOST: Treatment.RETRY,
    Outcome.ENGINE_ERROR: Treatment.RETRY,
    Outcome.VERIFIER_ERROR: Treatment.RETRY,
    Outcome.TOKEN_ERROR: Treatment.MASK,
    Outcome.CANCELLED: Treatment.DISCARD,
}
"""What happens to each outcome unless ``apex.failures.treatments`` or a plugin says otherwise."""

GRADED = frozenset({Outcome.COMPLETE, Outcome.LENGTH, Outcome.MAX_TURNS, Outcome.CONTEXT_LENGTH})
"""Outcomes that the policy brought about itself, so a verdict on them is fair."""

FAULTS = frozenset(Outcome) - GRADED - {Outcome.AGENT_TIMEOUT, Outcome.CANCELLED}
"""Outcomes that are nobody's policy: something of the machinery failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """The table of treatments with the retries of one run.

    Build it with :meth:`from_settings`; ``treatments`` is then complete.
    """

    treatments: Mapping[Outcome, Treatment] = field(default_factory=lambda: dict(TREATMENTS))
    max_retries: int = 2

    @classmethod
    def from_settings(
        cls,
        treatments: Mapping[str, str] | None = None,
        *,
        max_retries: int = 2,
        mask_overlong: bool = False,
    ) -> Self:
        """``treatments`` overrides the default table, by outcome.

        :param mask_overlong: SkyRL's ``generator.apply_overlong_filtering``: whatever the window,
            a turn's cap or the step limit cut off is masked.

        Raises ``ValueError`` naming the key for an unknown outcome or treatment, and for a fault
        that would be trained on: it has no verdict.
        """
        table = dict(TREATMENTS)
        if mask_overlong:
            cut_off = (Outcome.LENGTH, Outcome.MAX_TURNS, Outcome.CONTEXT_LENGTH)
            table.update(dict.fromkeys(cut_off, Treatment.MASK))
        for name, value in (treatments or {}).items():
            outcome = _member(Outcome, name, "apex.failures.treatments")
            table[outcome] = _member(Treatment, value, f"apex.failures.treatments.{name}")
            if outcome not in GRADED and table[outcome] is Treatment.TRAIN:
                raise ValueError(
                    f"apex.failures.treatments.{name}={value}: a trial that ended so has no "
                    "verdict to train on; use mask or retry"
                )
        if max_retries < 0:
            raise ValueError(f"apex.failures.max_retries={max_retries}; expected 0 or more")
        return cls(treatments=table, max_retries=max_retries)

    @property
    def masks(self) -> bool:
        """Whether any outcome can end in a masked row. Retries can: they may be used up."""
        return any(treatment is not Treatment.TRAIN for treatment in self.treatments.values())

    def classify(self, ended: EndedTrial) -> Failure:
        """The treatment of an ended trial: a plugin's, else the table's.

        ``retry`` becomes ``mask`` once the retries are used up, and ``train`` becomes ``mask``
        for a trial without a token record or a score, whoever asked for it.
        """
        failure = classify_failure(ended) or Failure(
            outcome=ended.outcome,
            treatment=self.treatments[ended.outcome],
            reason=ended.error_message or ended.outcome.value,
        )
        if failure.treatment is Treatment.RETRY and ended.attempt >= self.max_retries:
            reason = f"{failure.reason} (attempt {ended.attempt + 1}, no retry left)"
            return replace(failure, treatment=Treatment.MASK, reason=reason)
        if failure.treatment is Treatment.TRAIN and not is_trainable(ended):
            return replace(
                failure, treatment=Treatment.MASK, reason=f"{failure.reason} (nothing to train on)"
            )
        return failure


def is_trainable(ended: EndedTrial) -> bool:
    """Whether there are sampled tokens and a score."""
    return (
        ended.trajectory is not None
        and any(ended.trajectory.loss_mask)
        and ended.verdict is not None
        and ended.verdict.score is not None
    )


def _member[E: (Outcome, Treatment)](enum: type[E], value: str, key: str) -> E:
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(member.value for member in enum)
        raise ValueError(f"{key}: no {enum.__name__.lower()} {value!r}; known: {known}") from None
