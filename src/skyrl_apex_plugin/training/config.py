"""SkyRL's configuration with one more section, ``apex``."""

from dataclasses import dataclass, field
from typing import Any

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.config.config import BaseConfig

# No postponed annotations here: SkyRL builds nested sections from the evaluated field types.


@dataclass
class SandboxConfig(BaseConfig):
    """Where a trial's world runs."""

    name: str = "archipelago-local"
    """A registered sandbox, or ``module:Class`` of a harbor environment."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class, beside those that harbor gives every sandbox."""


@dataclass
class GraderConfig(BaseConfig):
    """What turns a finished trial into a verdict."""

    name: str = "task"
    """A registered grader, or ``module:Class``."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of its class."""
    pass_score: float = 1.0
    """A verdict of at least this score counts as a pass."""


@dataclass
class RewardsConfig(BaseConfig):
    """What is added to a verdict's score."""

    terms: dict[str, Any] = field(default_factory=dict)
    """Name of a registered reward term to its keyword arguments."""
    clip: list[float] | None = None
    """``[lowest, highest]`` reward."""


@dataclass
class GateConfig(BaseConfig):
    """The logprob gate: the trainer recomputes what the engine reported, before it trains."""

    steps: int = 1
    """How many training steps are checked, from the start of the run or its resumption: 0 none,
    -1 all. Under fully async training only the first step is sampled from the weights that
    recompute it; later ones differ by their staleness."""
    rate: float | None = None
    """Share of the later steps that are checked, evenly spaced by their numbers: 0.05 are steps
    20, 40, …, also after a resumption. By default 0.05, and 0 under fully async training."""
    mean_limit: float = 0.05
    """Largest mean absolute difference of a turn position, in nats."""
    max_limit: float | None = None
    """Largest absolute difference of a single token; ``None`` does not look at it."""


@dataclass
class SamplerConfig(BaseConfig):
    """How token IDs reach an inference engine."""

    name: str = "completions"
    """``embedded`` also replaces GPUs by the CPU engine and the CPU strategy."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the sampler's class; for ``embedded`` the options of its engine."""
    gate: GateConfig = field(default_factory=GateConfig)


@dataclass
class FailuresConfig(BaseConfig):
    """What is done with trials by how they ended, and when a step is refused."""

    treatments: dict[str, str] = field(default_factory=dict)
    """Outcome to ``train``, ``mask``, ``retry`` or ``discard``; overrides the default table."""
    max_retries: int = 2
    """How often a trial is run again; ``retry`` then becomes ``mask``."""
    max_failed_fraction: float = 0.5
    """A training step in which more than this share of the trials failed is refused."""
    min_group_survivors: int = 2
    """A group with fewer trained trials is masked as a whole: it has no baseline."""
    length_reward_zero: bool = False
    """Whether a trial that hit its turn's token cap gets reward 0 whatever its verdict."""


@dataclass
class RunnerConfig(BaseConfig):
    """Where trials run, and how many at once."""

    name: str = "local"
    """``local`` runs all trials on the event loop of the trainer's process, ``ray`` packs them
    into worker processes over the cluster."""
    max_concurrent_trials: int = 64
    """Over all trials of the run."""
    starts_per_second: float | None = None
    """At least 1.0, or ``None`` for no limit."""
    trials_per_worker: int = 32
    """Only ``ray``: trials at once in one worker process."""
    worker_cpus: float = 1.0
    """Only ``ray``: processors that a worker reserves."""
    worker_resources: dict[str, float] = field(default_factory=dict)
    """Only ``ray``: custom resources that place the workers, such as ``{"rollout": 0.01}``."""


@dataclass
class RecordConfig(BaseConfig):
    """What stays of a run."""

    dir: str | None = None
    """The run's directory. By default a new one under ``<trainer.export_path>/apex``."""
    keep: str = "all"
    """Trial directories that stay: ``all``, ``failed`` (neither trained nor graded) or ``none``."""


@dataclass
class TasksConfig(BaseConfig):
    """How ``data.train_data`` and ``data.val_data`` become rows."""

    where: str | None = None
    """Expression over a task's facts; tasks for which it does not hold are left out."""
    curriculum: str | None = None
    """Expression that orders the training tasks, ascending; shuffled when ``None``."""
    cache_dir: str | None = None
    """Where parquet shards are extracted to; by default ``~/.cache/skyrl-apex/tasks``."""


@dataclass
class ApexConfig(BaseConfig):
    """The section ``apex``: everything that SkyRL has no key for."""

    generator: str = "apex_tito"
    """Name of the generator; set by ``generator=NAME`` on the command line."""
    renderer: str = "auto"
    """How messages become tokens (``docs/tokens.md``)."""
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    agent: dict[str, Any] = field(default_factory=dict)
    """Settings of the agent (``docs/agent.md``) that SkyRL has no key for. Temperature, top_p and
    the cap on a turn come from ``generator.sampling_params``, and in evaluation from
    ``generator.eval_sampling_params``; ``max_turns`` from ``generator.max_turns`` when that is
    more than 1, SkyRL's default, unless it is set here."""
    grader: GraderConfig = field(default_factory=GraderConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    trial: dict[str, Any] = field(default_factory=dict)
    """Merged into harbor's ``TrialConfig`` as it is."""
    control: str = "none"
    """A deliberately wrong run, to show that the measure can fail: ``none``, ``shuffle_rewards``,
    ``zero_advantages``, ``invert_rewards`` or ``shift_mask``."""


@dataclass
class ApexTrainConfig(SkyRLTrainConfig):
    """SkyRL's whole configuration with the section ``apex``."""

    apex: ApexConfig = field(default_factory=ApexConfig)
