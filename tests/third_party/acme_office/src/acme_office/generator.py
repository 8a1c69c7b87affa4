"""Two SkyRL generators: one with its own configuration, one without anything."""

# Not `from __future__ import annotations`: SkyRL builds nested sections from real types.

from dataclasses import dataclass, field
from typing import Any

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

from acme_office.experiment import AcmeExperiment


@dataclass
class AcmeSection:
    word: str = "acme"


@dataclass
class AcmeConfig(SkyRLTrainConfig):
    acme: AcmeSection = field(default_factory=AcmeSection)


class EchoGenerator(GeneratorInterface):
    """Answers every prompt with one fixed word; needs no inference engine."""

    def __init__(self, word: str, tokenizer: Any) -> None:
        self.word = word
        self._tokenizer = tokenizer

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        rows = len(input_batch["prompts"])
        response = self._tokenizer.encode(self.word, add_special_tokens=False)
        prompt = self._tokenizer.encode("say it:", add_special_tokens=False)
        return GeneratorOutput(
            prompt_token_ids=[list(prompt) for _ in range(rows)],
            response_ids=[list(response) for _ in range(rows)],
            rewards=[1.0] * rows,
            loss_masks=[[1] * len(response) for _ in range(rows)],
            stop_reasons=["stop"] * rows,
            rollout_metrics={},
            rollout_logprobs=None,
            trajectory_ids=input_batch.get("trajectory_ids"),
        )


def acme_echo(cfg: Any, tokenizer: Any, inference_engine_client: Any) -> EchoGenerator:
    return EchoGenerator(cfg.acme.word, tokenizer)


acme_echo.config_class = AcmeConfig  # type: ignore[attr-defined]
acme_echo.experiment_class = AcmeExperiment  # type: ignore[attr-defined]


def acme_plain(cfg: Any, tokenizer: Any, inference_engine_client: Any) -> EchoGenerator:
    return EchoGenerator("plain", tokenizer)
