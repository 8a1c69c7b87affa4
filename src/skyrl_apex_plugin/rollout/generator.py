"""SkyRL's generator over harbor trials."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import get_rollout_metrics

from skyrl_apex_hookspecs import (
    Failure,
    Outcome,
    Task,
    Treatment,
    TrialFinished,
    VerifierError,
)
from skyrl_apex_plugin.agent.task import load_task
from skyrl_apex_plugin.discovery.hooks import notify
from skyrl_apex_plugin.grading.rewards import RewardShaper, token_rewards, write_reward

from .attempt import Attempt
from .masking import fill_masked_rewards, mask_small_groups
from .metrics import rollout_sums
from .outcomes import FailurePolicy
from .record import RunRecord
from .rollout import Rollout, Row, fit_token_rewards, masked_row, trained_row
from .runner import AttemptRunner, run_with_retries
from .trial_config import TrialConfigBuilder

logger = logging.getLogger(__name__)

Control = Callable[[list[Rollout]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """What the generator itself needs of the configuration."""

    filler_id: int
    """A token ID that stands where a masked row has none of its own."""
    max_context: int | None = None
    min_group_survivors: int = 2
    zero_reward_outcomes: frozenset[Outcome] = frozenset()
    """Outcomes whose reward is 0 whatever the verdict says."""
    token_level_rewards: bool = False
    """Whether the estimator looks at where a reward falls. Those that only sum get one number
    for each trajectory, which is the same to them and keeps SkyRL's zero-variance filter."""
    pass_score: float = 1.0
    sampler_kwargs: Callable[[], Mapping[str, Any]] = field(default=dict)
    """Of the agent's sampler, asked for at the start of each trajectory: the cache salt follows
    the policy's version."""
    sampler: str = "completions"
    controls: tuple[Control, ...] = ()
    shift_mask: bool = False


class ApexGenerator(GeneratorInterface):
    """Runs a harbor trial for each row of a batch.

    Rows come back in the order of the input, each with a treatment: trained rows carry their
    tokens, loss mask, logprobs and reward; masked ones a placeholder whose reward moves nothing.
    """

    def __init__(
        self,
        *,
        settings: GeneratorSettings,
        runner: AttemptRunner,
        policy: FailurePolicy,
        trials: TrialConfigBuilder,
        shaper: RewardShaper,
        record: RunRecord,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._policy = policy
        self._trials = trials
        self._shaper = shaper
        self.record = record
        self._running: set[asyncio.Task[Rollout]] = set()
        self._closed = False

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Roll the batch out. Cancelling stops every trial and its sandbox first.

        Raises ``asyncio.CancelledError`` once the generator is closed.
        """
        if self._closed:
            raise asyncio.CancelledError("the generator is closed")
        async with asyncio.TaskGroup() as group:
            tasks = [
                self._start(group, input_batch, index)
                for index in range(len(input_batch["prompts"]))
            ]
        rollouts = [task.result() for task in tasks]
        if _phase(input_batch) == "train":
            self._mask_small_groups(rollouts)
            for control in self._settings.controls:
                control(rollouts)
        return self._output(input_batch, rollouts)

    async def aclose(self) -> None:
        """Stop every trial that still runs, with its sandbox, and wait until that is done.

        No trial starts any more: SkyRL's generation workers outlive its training loop, and would
        start the next group into an event loop that is about to close.
        """
        self._closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._runner.aclose()

    def _start(
        self, group: asyncio.TaskGroup, batch: GeneratorInput, index: int
    ) -> asyncio.Task[Rollout]:
        task = group.create_task(self._roll_out(batch, index))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _roll_out(self, batch: GeneratorInput, index: int) -> Rollout:
        step, phase = _step(batch), _phase(batch)
        extras = (batch["env_extras"] or [])[index]
        identity = (batch["trajectory_ids"] or [])[index]
        task = await asyncio.to_thread(load_task, Path(extras["task_dir"]))
        name = trial_name(task, phase, step, identity.repetition_id)
        agent_kwargs = self._agent_kwargs(batch["sampling_params"] or {})

        def prepare(number: int) -> Attempt:
            attempt_name = f"{name}-{number}" if number else name
            self.record.trial_started(attempt_name, step=step, phase=phase)
            return self._attempt(task, attempt_name, number, agent_kwargs)

        started = asyncio.get_running_loop().time()
        finished = await run_with_retries(self._runner, self._policy, prepare)
        rollout = Rollout(
            finished=finished,
            failure=finished.failure,
            group=identity.instance_id,
            kind=str(extras.get("data_source") or "unknown"),
            seconds=asyncio.get_running_loop().time() - started,
        )
        await asyncio.to_thread(self._reward, rollout)
        await notify(
            "apex_trial_finished",
            TrialFinished(
                ended=rollout.ended,
                trial_name=finished.attempt.config.trial_name,
                failure=rollout.failure,
                reward=rollout.reward,
                terms=rollout.terms,
            ),
        )
        await asyncio.to_thread(self.record.trial_ended, rollout, step=step, phase=phase)
        return rollout

    def _attempt(
        self, task: Task, name: str, number: int, agent_kwargs: Mapping[str, Any]
    ) -> Attempt:
        config = self._trials.build(
            task, trials_dir=self.record.trials_dir, trial_name=name, agent_kwargs=agent_kwargs
        )
        return Attempt(
            task=task, config=config, number=number, max_context=self._settings.max_context
        )

    def _agent_kwargs(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """The agent's settings that a phase's sampling parameters (vllm's names) decide."""
        kwargs = dict(self._settings.sampler_kwargs())
        return {
            "temperature": sampling.get("temperature", 1.0),
            "top_p": sampling.get("top_p", 1.0),
            "turn_max_tokens": sampling["max_tokens"],
            "sampler": {"name": self._settings.sampler, "kwargs": kwargs},
        }

    def _reward(self, rollout: Rollout) -> None:
        """Shape the reward of a graded trial; a plugin that fails there masks the row."""
        ended = rollout.ended
        if rollout.score is None or ended.trajectory is None:
            return
        try:
            shaped = self._shaper.shape(ended.trajectory)
            placed = token_rewards(
                shaped, len(ended.trajectory.tokens) - ended.trajectory.prompt_length
            )
        except VerifierError as error:
            logger.error("trial %s is masked: %s", ended.task.task_id, error)
            rollout.failure = Failure(
                outcome=Outcome.VERIFIER_ERROR, treatment=Treatment.MASK, reason=str(error)
            )
            return
        if rollout.failure.outcome in self._settings.zero_reward_outcomes:
            shaped, placed = shaped._replace(reward=0.0), None
        rollout.reward, rollout.terms, rollout.token_rewards = shaped.reward, shaped.terms, placed
        rollout.trained = rollout.failure.treatment is Treatment.TRAIN
        write_reward(rollout.finished.attempt.trial_dir, rollout.score, shaped)

    def _mask_small_groups(self, rollouts: Sequence[Rollout]) -> None:
        stay = mask_small_groups(
            [rollout.group for rollout in rollouts],
            [rollout.trained for rollout in rollouts],
            self._settings.min_group_survivors,
        )
        for rollout, trained in zip(rollouts, stay, strict=True):
            if rollout.trained and not trained:
                rollout.trained = False
                rollout.failure = replace(
                    rollout.failure,
                    treatment=Treatment.MASK,
                    reason=f"{rollout.failure.reason} (too few of its group survived)",
                )

    def _output(self, batch: GeneratorInput, rollouts: Sequence[Rollout]) -> GeneratorOutput:
        training = _phase(batch) == "train"
        rows = [self._row(rollout, training) for rollout in rollouts]
        rewards = self._rewards(rollouts, rows, training)
        masks = [row.loss_mask for row in rows]
        if training and self._settings.shift_mask:
            masks = [[0, *mask[:-1]] for mask in masks]
        times = [rollout.seconds for rollout in rollouts]
        metrics = get_rollout_metrics(
            [row.response_ids for row in rows],
            rewards,
            loss_masks=masks,
            trajectory_completion_times=times,
        )
        sums = rollout_sums(rollouts, pass_score=self._settings.pass_score, training=training)
        return {
            "prompt_token_ids": [row.prompt_ids for row in rows],
            "response_ids": [row.response_ids for row in rows],
            "rewards": rewards,
            "loss_masks": masks,
            "stop_reasons": [rollout.failure.outcome.value for rollout in rollouts],
            "rollout_metrics": {**metrics, **sums},
            "rollout_logprobs": [row.logprobs for row in rows],
            "trajectory_ids": batch["trajectory_ids"],
            "trajectory_generation_times": times,
            "rollout_expert_indices": None,
            "is_last_step": None,
            "env_metrics": None,
            "pixel_values": None,
            "image_grid_thw": None,
        }

    def _row(self, rollout: Rollout, training: bool) -> Row:
        """A trained row; in evaluation every trial with tokens is shown as it is."""
        trajectory = rollout.ended.trajectory
        if (
            trajectory is not None
            and any(trajectory.loss_mask)
            and (rollout.trained or not training)
        ):
            return trained_row(trajectory)
        return masked_row(trajectory, self._settings.filler_id)

    def _rewards(
        self, rollouts: Sequence[Rollout], rows: Sequence[Row], training: bool
    ) -> list[Any]:
        """One reward for each row, or one for each token.

        A masked row takes the mean of its group; an ungraded one in evaluation that of its kind,
        so that SkyRL's own averages are those over graded trials.
        """
        filled = fill_masked_rewards(
            [rollout.group if training else rollout.kind for rollout in rollouts],
            [r.reward if r.trained or not training else None for r in rollouts],
        )
        if not self._settings.token_level_rewards:
            return filled
        return [
            fit_token_rewards(rollout.token_rewards, len(row.response_ids))
            if rollout.token_rewards is not None and rollout.trained
            else [0.0] * (len(row.response_ids) - 1) + [reward]
            for rollout, row, reward in zip(rollouts, rows, filled, strict=True)
        ]


def trial_name(task: Task, phase: str, step: int | None, repetition: int) -> str:
    """A directory name that is unique over runs and resumptions and says what it is."""
    slug = re.sub(r"[^a-zA-Z0-9]+", "-", task.task_slug or task.task_id).strip("-")[:40]
    when = f"{phase}{'' if step is None else step}"
    return f"{slug}-{when}-r{repetition}-{uuid.uuid4().hex[:8]}".lower()


def shuffle_rewards(rollouts: list[Rollout]) -> None:
    """Control: each trained row gets the reward of another one of the call."""
    trained = [rollout for rollout in rollouts if rollout.trained]
    rewards = [rollout.reward for rollout in trained]
    random.shuffle(rewards)
    for rollout, reward in zip(trained, rewards, strict=True):
        rollout.reward, rollout.token_rewards = reward, None


def invert_rewards(rollouts: list[Rollout]) -> None:
    """Control: the better the trajectory, the lower its reward."""
    for rollout in rollouts:
        if rollout.reward is not None:
            rollout.reward, rollout.token_rewards = -rollout.reward, None


def _phase(batch: GeneratorInput) -> str:
    metadata = batch.get("batch_metadata")
    return metadata.training_phase if metadata is not None else "train"


def _step(batch: GeneratorInput) -> int | None:
    metadata = batch.get("batch_metadata")
    return metadata.global_step if metadata is not None else None
