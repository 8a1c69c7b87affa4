"""The contract between skyrl-apex-plugin and its plugins: hooks and the data they exchange.

Imports pluggy and the standard library only. A plugin package needs nothing else from this
distribution.
"""

from .specs import PROJECT, Register, hookimpl, hookspec
from .types import (
    ApexError,
    ContextLengthExceeded,
    CriterionResult,
    EndedTrial,
    EngineError,
    Failure,
    FinishedTrial,
    Grader,
    Observation,
    Outcome,
    RewardRule,
    RewardTerm,
    Sample,
    Sampler,
    SamplingParams,
    SetupError,
    Task,
    TokenError,
    ToolCall,
    ToolSessionLost,
    Trajectory,
    Treatment,
    TrialFinished,
    TrialStarted,
    Turn,
    TurnFinished,
    Verdict,
    VerifierError,
)

CONTRACT_VERSION = 1
"""Raised whenever a data class, hook signature, outcome, configuration key or file format of
the contract changes; ``tests/unit/contract/test_contract.py`` compares it with what is frozen."""

__all__ = [
    "CONTRACT_VERSION",
    "PROJECT",
    "ApexError",
    "ContextLengthExceeded",
    "CriterionResult",
    "EndedTrial",
    "EngineError",
    "Failure",
    "FinishedTrial",
    "Grader",
    "Observation",
    "Outcome",
    "Register",
    "RewardRule",
    "RewardTerm",
    "Sample",
    "Sampler",
    "SamplingParams",
    "SetupError",
    "Task",
    "TokenError",
    "ToolCall",
    "ToolSessionLost",
    "Trajectory",
    "Treatment",
    "TrialFinished",
    "TrialStarted",
    "Turn",
    "TurnFinished",
    "Verdict",
    "VerifierError",
    "hookimpl",
    "hookspec",
]
