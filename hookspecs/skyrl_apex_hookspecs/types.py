"""Data classes that hooks exchange. Standard library only; frozen at contract version 1.

Units: times and durations are seconds (``float``), wall-clock times are ISO 8601 in UTC,
token IDs are ``array("i")``, logprobs (natural log, of the distribution that was sampled
from) are ``array("f")``, a loss mask is ``bytes`` of 0 and 1.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable


class Outcome(StrEnum):
    """How a trial ended. Exactly one holds for every trial."""

    COMPLETE = "complete"
    """The agent gave a final answer."""
    LENGTH = "length"
    """A turn hit its own token cap."""
    MAX_TURNS = "max_turns"
    """The step limit was reached."""
    CONTEXT_LENGTH = "context_length"
    """The context window is full."""
    AGENT_TIMEOUT = "agent_timeout"
    """The agent's wall clock ran out."""
    SETUP_ERROR = "setup_error"
    """Sandbox, world or tools did not come up."""
    TOOL_SESSION_LOST = "tool_session_lost"
    """The MCP session died and could not be re-established."""
    ENGINE_ERROR = "engine_error"
    """The inference engine failed for good."""
    VERIFIER_ERROR = "verifier_error"
    """The grader could not reach a verdict. Never a score of 0."""
    TOKEN_ERROR = "token_error"
    """The token stream could not be extended or checked exactly."""
    CANCELLED = "cancelled"
    """Stopped from outside."""


class Treatment(StrEnum):
    """What the generator does with an ended trial."""

    TRAIN = "train"
    """Graded and trained on."""
    MASK = "mask"
    """Kept as a row with an all-zero loss mask; its reward moves nothing."""
    RETRY = "retry"
    """Run again with a fresh sandbox and session; masked once the retries are used up."""
    DISCARD = "discard"
    """Dropped; only for trials stopped from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The treatment of an ended trial, with the reason that metrics and logs name."""

    outcome: Outcome
    treatment: Treatment
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One harbor task directory of a world (``archipelago.json`` and ``instruction.md``)."""

    task_id: str
    directory: Path
    instruction: str
    task_name: str = ""
    task_slug: str = ""
    world_id: str = ""
    world_short_name: str = ""
    world_kind: str = ""
    """``investment-banking``, ``law``, ``management-consulting``, ``miniworld``, …"""
    image: str | None = None
    """Name of the world's image (``ecr_image``); ``None`` when the task has no world."""
    required_env_keys: tuple[str, ...] = ()
    needs_snapshot: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Every other field of ``archipelago.json``, untouched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionResult:
    """One criterion of a verdict. ``score`` is ``None`` exactly when ``status`` is ``error``."""

    criterion_id: str
    score: float | None
    status: Literal["ok", "error"] = "ok"
    criteria: str = ""
    rationale: str = ""
    primary: bool = False
    """Whether the task calls this criterion its primary objective."""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if (self.score is None) != (self.status == "error"):
            raise ValueError(
                f"criterion {self.criterion_id!r}: score {self.score!r} does not fit status "
                f"{self.status!r}; a failed criterion has no score, a graded one has"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a grader says of a finished trial: a score, or an error that is no score.

    Raises ``ValueError`` when both or neither of ``score`` and ``error`` are given, so a
    failed grading cannot be mistaken for a score of 0.
    """

    grader: str
    score: float | None = None
    error: str | None = None
    criteria: tuple[CriterionResult, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.score is None) == (self.error is None):
            raise ValueError(
                f"verdict of grader {self.grader!r} needs either a score or an error, "
                f"got score={self.score!r} and error={self.error!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call as it was dispatched, or refused before dispatch."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    server: str = ""
    ok: bool = True
    """Whether the tool reported success (application errors count as failures)."""
    dispatched: bool = True
    """``False`` for a call that was answered by a corrective observation instead."""
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A tool's output on its way to the model."""

    call: ToolCall
    text: str
    images: tuple[bytes, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model turn. Offsets index the trajectory's token arrays: ``[start, end)`` was sampled."""

    index: int
    start: int
    end: int
    finish_reason: str
    """The engine's own word: ``stop``, ``length``, …"""
    calls: tuple[ToolCall, ...] = ()
    observation_end: int | None = None
    """End offset of the observation tokens that follow; ``None`` on the last turn."""
    malformed: bool = False
    """Whether the turn drew a corrective observation (format fault)."""
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    weight_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A finished rollout: one append-only token stream with its turns and verdict.

    ``tokens``, ``logprobs`` and ``loss_mask`` have equal length. ``tokens[:prompt_length]`` is
    the first prompt. The mask is 1 only on sampled tokens; the logprob is 0.0 wherever it is 0.
    """

    task: Task
    outcome: Outcome
    tokens: array[int]
    logprobs: array[float]
    loss_mask: bytes
    prompt_length: int
    turns: tuple[Turn, ...] = ()
    answer: str | None = None
    verdict: Verdict | None = None
    max_context: int | None = None
    """Context window in tokens, when known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerm:
    """A named additive part of the reward; logged as ``apex/reward/<name>``."""

    name: str
    value: float
    per_token: array[float] | None = None
    """Optional extra reward by token (length of the response: every token after the first
    prompt). ``value`` is then its sum, and the trajectory gets token-level rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTrial:
    """What ``apex_classify_failure`` decides on."""

    task: Task
    outcome: Outcome
    attempt: int
    """Number of this attempt, from 0."""
    error_type: str | None = None
    error_message: str | None = None
    trajectory: Trajectory | None = None
    verdict: Verdict | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase: ``sandbox``, ``setup`` and its parts ``setup/<step>``, ``agent`` with its
    parts ``model``, ``tools``, ``upload`` and ``close``, ``verifier``, ``total``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """Handed to ``apex_trial_started``."""

    task: Task
    trial_name: str
    attempt: int
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """Handed to ``apex_turn_finished``."""

    task: Task
    trial_name: str
    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """Handed to ``apex_trial_finished`` once treatment and reward are decided."""

    ended: EndedTrial
    trial_name: str
    failure: Failure
    reward: float | None
    terms: tuple[RewardTerm, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What one model turn is sampled with."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled completion: as many logprobs as token IDs, the stop token included."""

    token_ids: array[int]
    logprobs: array[float]
    finish_reason: str
    weight_version: int | None = None


@runtime_checkable
class Sampler(Protocol):
    """An inference transport. Named by ``apex.sampler.name``.

    ``sample`` raises ``ContextLengthExceeded`` when the engine says that the window is full and
    ``EngineError`` when its own retries are used up.
    """

    async def sample(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, session_id: str
    ) -> Sample:
        """Sample one turn. Called for one turn of a session at a time, for many sessions at once.

        ``finish_reason`` is ``stop`` or ``tool_calls`` for a turn that the model ended, ``length``
        for one that ``params.max_tokens`` or the window cut off; any other ends the trial as an
        ``engine_error``. A cancellation must come through: it is how a trial is stopped.
        """
        ...

    async def finish(self, session_id: str) -> None:
        """The trajectory is over; the engine may drop its state. Never raises."""
        ...

    async def aclose(self) -> None:
        """The trial is over: close what this object holds open. Called once, last."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """What a grader sees. ``environment`` is the live harbor ``BaseEnvironment``."""

    task: Task
    trial_dir: Path
    environment: Any
    answer: str | None
    trajectory: Trajectory | None
    """``None`` when the trial's agent left no token record (any other harbor agent)."""
    harbor_task: Any = None
    """harbor's own ``Task`` object."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Resolved ``[verifier.env]``: secret values, not to be logged or written."""


@runtime_checkable
class Grader(Protocol):
    """Turns a finished trial into a verdict. Named by ``apex.grader.name``.

    Built with ``apex.grader.kwargs`` as keyword arguments. An exception counts as
    ``verifier_error``, exactly like a verdict with ``error`` set.
    """

    async def grade(self, trial: FinishedTrial) -> Verdict:
        """Judge the trial while its sandbox still runs.

        Whatever is not the policy's doing (a judge that does not answer, a file that cannot be
        read) is a verdict with ``error``, or an exception; a wrong answer is a score of 0.
        """
        ...


@runtime_checkable
class RewardRule(Protocol):
    """A configurable reward term. Named by a key of ``apex.rewards.terms``.

    Built once in each process with that key's value as keyword arguments, so it may keep state
    from one trajectory to the next. Called like ``apex_reward_terms``; synchronous.
    """

    def __call__(self, trajectory: Trajectory) -> RewardTerm | Sequence[RewardTerm] | None: ...


class ApexError(Exception):
    """Base of the errors that carry an outcome."""

    outcome: Outcome = Outcome.SETUP_ERROR


class SetupError(ApexError):
    """Raise it when the sandbox, the world, its tools or the task's files are not as they must be
    before the first turn."""

    outcome = Outcome.SETUP_ERROR


class ToolSessionLost(ApexError):
    """Raise it when the tools were there and stay away after all attempts to reach them again."""

    outcome = Outcome.TOOL_SESSION_LOST


class EngineError(ApexError):
    """Raise it when inference failed for good: retries are used up, or the request is refused."""

    outcome = Outcome.ENGINE_ERROR


class ContextLengthExceeded(ApexError):
    """Raise it when the prompt, or what comes next, does not fit into the window."""

    outcome = Outcome.CONTEXT_LENGTH


class VerifierError(ApexError):
    """Raise it when no verdict or reward can be reached; never for an answer that is wrong."""

    outcome = Outcome.VERIFIER_ERROR


class TokenError(ApexError):
    """Raise it when token IDs or logprobs are missing, or not those that were sampled or sent."""

    outcome = Outcome.TOKEN_ERROR
