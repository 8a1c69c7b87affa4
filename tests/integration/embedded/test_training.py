"""SkyRL's own trainer on the CPU: real steps, real weight transfer, real checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("train_and_compare.py")

COMMON = {
    "trainer.strategy": "fsdp",
    "trainer.placement.policy_num_gpus_per_node": 1,
    "trainer.placement.ref_num_gpus_per_node": 1,
    "trainer.placement.critic_num_gpus_per_node": 1,
    "trainer.train_batch_size": 4,
    "trainer.policy_mini_batch_size": 4,
    "trainer.micro_train_batch_size_per_gpu": 8,
    "trainer.micro_forward_batch_size_per_gpu": 8,
    "trainer.epochs": 1,
    "trainer.policy.optimizer_config.lr": 1e-3,
    "trainer.eval_interval": 0,
    "trainer.eval_before_train": "false",
    "trainer.ckpt_interval": 0,
    "trainer.hf_save_interval": 0,
    "trainer.logger": "console",
    "trainer.resume_mode": "none",
    "generator.n_samples_per_prompt": 4,
    "generator.batched": "false",
    "generator.sampling_params.max_generate_length": 16,
}
FULLY_ASYNC = {
    "trainer.fully_async.enabled": "true",
    "trainer.fully_async.num_parallel_generation_workers": 4,
    "trainer.fully_async.max_staleness_steps": 1,
    "trainer.algorithm.policy_loss_type": "dppo",
    "trainer.algorithm.use_kl_loss": "false",
}
PPO_WITH_CRITIC_AND_KL = {
    "trainer.algorithm.advantage_estimator": "gae",
    "trainer.algorithm.use_kl_loss": "true",
    "trainer.critic_mini_batch_size": 4,
}

Train = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def train(checkpoint: Path, tmp_path: Path, python: Any) -> Train:
    """Runs the trainer in a process of its own; returns its report."""

    def run(*extra: str, **changes: Any) -> list[dict[str, Any]]:
        report = tmp_path / f"report-{len(list(tmp_path.glob('report-*')))}.jsonl"
        settings = {
            **COMMON,
            "trainer.policy.model.path": checkpoint,
            "trainer.ckpt_path": tmp_path / "checkpoints",
            "trainer.export_path": tmp_path / "exports",
            "trainer.log_path": tmp_path / "logs",
            **changes,
        }
        overrides = [f"{name}={value}" for name, value in settings.items()]
        python.run(SCRIPT, report, *overrides, *extra, timeout=1000)
        return [json.loads(line) for line in report.read_text().splitlines()]

    return run


def assert_in_step(report: list[dict[str, Any]]) -> None:
    """The engine has the trainer's weights after each sync, and each step has changed them."""
    assert [line["client_version"] for line in report] == list(range(1, len(report) + 1))
    for line in report:
        assert line["disagreement"] < 1e-4, line["step"]
    for line in report[1:]:
        assert line["change"] > 1e-3, line["step"]


@pytest.mark.timeout(1050)
def test_the_engine_follows_every_update_and_only_through_the_sync(train: Train) -> None:
    report = train("+skip_sync_after=3", **FULLY_ASYNC, **{"trainer.max_training_steps": 3})
    assert [line["step"] for line in report] == [0, 1, 2, 3]
    assert_in_step(report[:3])
    # The third update was not sent: what is compared above would have noticed.
    assert report[3]["disagreement"] > 1e-3
    assert report[3]["change"] < 1e-4


@pytest.mark.full
@pytest.mark.timeout(2050)
def test_checkpoints_resume_and_exports_load(train: Train, tmp_path: Path) -> None:
    steps = {"trainer.max_training_steps": 2, "trainer.ckpt_interval": 2}
    first = train(**FULLY_ASYNC, **steps, **{"trainer.hf_save_interval": 2})
    assert exported_logprobs(tmp_path / "exports") == pytest.approx(
        [x for row in first[-1]["engine_logprobs"] for x in row], abs=1e-4
    )
    resumed = train(
        **FULLY_ASYNC, **{**steps, "trainer.max_training_steps": 3, "trainer.resume_mode": "latest"}
    )
    assert_in_step(resumed)
    assert len(resumed) == 2
    last, restored = first[-1]["engine_logprobs"], resumed[0]["engine_logprobs"]
    for saved, loaded in zip(last, restored, strict=True):
        assert loaded == pytest.approx(saved, abs=1e-5)


def exported_logprobs(exports: Path) -> list[float]:
    """Scores of the script's texts by the exported policy, loaded with transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    directory = next(exports.rglob("model.safetensors")).parent
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    texts = torch.tensor([[(7 * row + 3 * n) % 250 for n in range(40)] for row in range(4)])
    with torch.no_grad():
        logprobs = model(texts).logits.log_softmax(-1)
    return [logprobs[row, n - 1, texts[row, n]].item() for row in range(4) for n in range(10, 40)]


@pytest.mark.full
@pytest.mark.timeout(1050)
def test_synchronous_ppo_with_a_critic_and_a_reference_model(
    train: Train, checkpoint: Path
) -> None:
    report = train(
        **PPO_WITH_CRITIC_AND_KL,
        **{"trainer.critic.model.path": checkpoint, "trainer.max_training_steps": 2},
    )
    assert [line["step"] for line in report] == [0, 1, 2]
    assert_in_step(report)


@pytest.mark.full
@pytest.mark.timeout(1050)
def test_two_ranks_share_the_model(train: Train) -> None:
    report = train(
        **FULLY_ASYNC,
        **{
            "trainer.max_training_steps": 2,
            "trainer.placement.policy_num_gpus_per_node": 2,
            "trainer.micro_train_batch_size_per_gpu": 4,
        },
    )
    assert_in_step(report)
