"""Trains a random Qwen3 with SkyRL's own trainer on the CPU and compares it with its engine.

After every weight sync the engine scores a few fixed texts over HTTP, and the trainer's policy
worker scores them in its own forward pass. One line of JSON for each sync goes to the file named
by the first argument; the rest are SkyRL's overrides. ``+skip_sync_after=N`` leaves the broadcast
out from the N-th training step on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.utils import validate_cfg

from skyrl_apex_plugin import embedded

TEXTS = [[(7 * row + 3 * n) % 250 for n in range(40)] for row in range(4)]
RESPONSE = 30


class Prompts:
    """Sixteen prompts in the form of SkyRL's dataset."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        prompt = [{"role": "user", "content": f"prompt {index}"}]
        return {"prompt": prompt, "env_class": None, "env_extras": {}, "uid": str(index)}

    def collate_fn(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return items


class Generator:
    """Samples through SkyRL's client; the reward is the share of small token IDs."""

    def __init__(self, client: Any, tokenizer: Any) -> None:
        self.client, self.tokenizer = client, tokenizer

    async def generate(self, batch: dict[str, Any]) -> dict[str, Any]:
        from skyrl.train.generators.utils import get_rollout_metrics

        prompts = [self.tokenizer.encode(prompt[0]["content"]) for prompt in batch["prompts"]]
        params = {**(batch.get("sampling_params") or {}), "logprobs": 0, "min_tokens": 0}
        output = await self.client.generate(
            {"prompt_token_ids": prompts, "sampling_params": params, "session_ids": None}
        )
        responses = output["response_ids"]
        rewards = [sum(token < 100 for token in ids) / len(ids) for ids in responses]
        return {
            "prompt_token_ids": prompts,
            "response_ids": responses,
            "rewards": rewards,
            "loss_masks": [[1] * len(ids) for ids in responses],
            "stop_reasons": output["stop_reasons"],
            "rollout_logprobs": output["response_logprobs"],
            "rollout_metrics": get_rollout_metrics(responses, rewards),
            "trajectory_ids": batch.get("trajectory_ids"),
        }


async def engine_logprobs(client: Any) -> list[list[float]]:
    """Logprobs of the last ``RESPONSE`` tokens of each text, from the engine."""
    scored = []
    for text in TEXTS:
        params = {"max_tokens": 1, "prompt_logprobs": 0}
        answer = await client._post(
            f"{client.proxy_url}/inference/v1/generate",
            json={"token_ids": text, "sampling_params": params},
        )
        entries = list(zip(text, answer["prompt_logprobs"], strict=True))[-RESPONSE:]
        scored.append([entry[str(token)]["logprob"] for token, entry in entries])
    return scored


def trainer_logprobs(dispatch: Any) -> list[list[float]]:
    """The same from the trainer's policy worker."""
    import torch
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch

    sequences = torch.tensor(TEXTS)
    batch = TrainingInputBatch(
        {"sequences": sequences, "attention_mask": torch.ones_like(sequences)}
    )
    batch.metadata = {"response_length": RESPONSE}
    output = dispatch.forward("policy", batch)
    return [row["logprobs"] for row in output.loss_fn_outputs]


def mean_difference(left: list[list[float]], right: list[list[float]]) -> float:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def comparing(trainer_class: type, report: Path, skip_sync_after: int) -> type:
    """``trainer_class`` with CPU workers, which reports after each weight sync."""

    class Comparing(trainer_class):  # type: ignore[misc, valid-type]
        def build_models(self, *stock: Any) -> None:
            super().build_models(*embedded.workers())
            self._previous: list[list[float]] | None = None
            self._sync = self.dispatch.save_weights_for_sampler
            self.dispatch.save_weights_for_sampler = self._sync_and_compare

        async def _sync_and_compare(self, *args: Any) -> None:
            if self.global_step >= skip_sync_after:
                self.dispatch._broadcast_to_inference_engines = lambda *a, **k: None
            await self._sync(*args)
            scores = await engine_logprobs(self.inference_engine_client)
            line = {
                "step": self.global_step,
                "disagreement": mean_difference(scores, trainer_logprobs(self.dispatch)),
                "change": mean_difference(scores, self._previous) if self._previous else None,
                "client_version": self.inference_engine_client.weight_version,
                "engine_logprobs": scores,
            }
            self._previous = scores
            with report.open("a") as file:
                file.write(json.dumps(line) + "\n")

    return Comparing


@ray.remote(num_cpus=1)
def train(cfg: SkyRLTrainConfig, report: Path, skip_sync_after: int) -> None:
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
    from skyrl.train.trainer import RayPPOTrainer

    stock = FullyAsyncRayPPOTrainer if cfg.trainer.fully_async.enabled else RayPPOTrainer

    class Experiment(BasePPOExp):  # type: ignore[misc]
        def get_train_dataset(self) -> Prompts:
            return Prompts()

        def get_eval_dataset(self) -> None:
            return None

        def get_inference_client(self) -> Any:
            return embedded.build_inference_client(self.cfg, self.tokenizer)

        def get_generator(self, cfg: Any, tokenizer: Any, client: Any) -> Generator:
            return Generator(client, tokenizer)

        def get_trainer(self, **parts: Any) -> Any:
            return comparing(stock, report, skip_sync_after)(**parts)

    try:
        Experiment(cfg).run()
    finally:
        embedded.stop_engines()


def main() -> None:
    report, *overrides = sys.argv[1:]
    skip = [arg for arg in overrides if arg.startswith("+skip_sync_after=")]
    skip_sync_after = int(skip[0].split("=")[1]) if skip else 10**9
    cfg = SkyRLTrainConfig.from_cli_overrides([arg for arg in overrides if arg not in skip])
    embedded.apply_settings(cfg)
    validate_cfg(cfg)
    embedded.initialize_ray(cfg)
    ray.get(train.remote(cfg, Path(report), skip_sync_after))


if __name__ == "__main__":
    main()
