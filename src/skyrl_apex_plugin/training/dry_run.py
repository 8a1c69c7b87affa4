"""Everything about a run that can be checked without a GPU and without starting anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.discovery.checkup import check_versions

from .keys import needed_keys, plugin_classes, require_keys
from .secrets import redacted

if TYPE_CHECKING:
    from .config import ApexTrainConfig
    from .preset import Purpose


@dataclass(frozen=True, slots=True)
class DryCheck:
    status: Literal["ok", "failed", "skipped"]
    name: str
    detail: str


def run_checks(
    purpose: Purpose, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[DryCheck]:
    """Versions, configuration, data, keys and sandbox, in this order.

    Ends after a configuration that does not parse; what SkyRL's validators refuse (a logger's
    missing key, say) does not hide what else is missing.
    """
    yield from _versions()
    cfg, config_check = _config(purpose, arguments)
    yield config_check
    if cfg is None:
        return
    directories, data_check = _data(purpose, cfg)
    yield data_check
    yield _keys(cfg, directories, environment)
    yield _sandbox(cfg)


def _versions() -> Iterator[DryCheck]:
    for check in check_versions():
        if check.status != "ok":
            status: Literal["failed", "skipped"] = "failed" if check.status == "fail" else "skipped"
            yield DryCheck(status, "versions", f"{check.name} {check.found}: {check.remedy}")
    yield DryCheck("ok", "versions", "what is installed fits, except where said above")


def _config(purpose: Purpose, arguments: Sequence[str]) -> tuple[ApexTrainConfig | None, DryCheck]:
    """SkyRL's own parser and validators, then this package's."""
    from skyrl.train.utils.utils import validate_cfg, validate_generator_cfg

    from .config import ApexTrainConfig
    from .experiment import prepare_config

    usable: ApexTrainConfig | None = None
    try:
        cfg: ApexTrainConfig = ApexTrainConfig.from_cli_overrides(list(arguments))
        usable = prepare_config(cfg)
        validate = validate_cfg if purpose == "train" else validate_generator_cfg
        validate(cfg)
    except (AssertionError, NotImplementedError, ValueError, RuntimeError) as error:
        return usable, DryCheck("failed", "config", str(error) or repr(error))
    except Exception as error:  # a validator of SkyRL, or a name of a plugin
        return usable, DryCheck("failed", "config", f"{type(error).__name__}: {error}")
    return usable, DryCheck("ok", "config", "accepted by SkyRL's parser and validators")


def _data(purpose: Purpose, cfg: ApexTrainConfig) -> tuple[list[Path], DryCheck]:
    """The task directories of the run, and whether they are enough for a step."""
    evaluates = purpose == "eval" or cfg.trainer.eval_interval > 0
    sources = {
        "training": cfg.data.train_data if purpose == "train" else [],
        "validation": cfg.data.val_data if evaluates else [],
    }
    found: dict[str, list[Path]] = {}
    for phase, places in sources.items():
        if absent := [place for place in places if not Path(place).expanduser().exists()]:
            return [], DryCheck("failed", "data", f"not there: {', '.join(map(str, absent))}")
        curriculum = cfg.apex.tasks.curriculum if phase == "training" else None
        try:
            found[phase] = _task_dirs(cfg, places, curriculum)
        except ValueError as error:
            return [], DryCheck("failed", "data", str(error))
        except Exception as error:  # a filter over real tasks: a division by zero, say
            given = f"apex.tasks.where={cfg.apex.tasks.where!r}, curriculum={curriculum!r}"
            reason = f"{type(error).__name__}: {error}"
            return [], DryCheck("failed", "data", f"{phase} tasks, {given}: {reason}")
    counts = ", ".join(f"{len(dirs)} {phase} tasks" for phase, dirs in found.items() if dirs)
    directories = [directory for dirs in found.values() for directory in dirs]
    if purpose == "train" and (few := _too_few(cfg, len(found["training"]))):
        return directories, DryCheck("failed", "data", few)
    if not directories:
        return [], DryCheck("failed", "data", "no tasks: set data.val_data")
    return directories, DryCheck("ok", "data", counts)


def _task_dirs(cfg: ApexTrainConfig, sources: Sequence[str], curriculum: str | None) -> list[Path]:
    from skyrl_apex_plugin.data.dataset import TaskDataset

    if not sources:
        return []
    tasks = cfg.apex.tasks
    dataset = TaskDataset(
        sources,
        cache_dir=Path(tasks.cache_dir).expanduser() if tasks.cache_dir else None,
        where=tasks.where,
        curriculum=curriculum,
    )
    return [Path(dataset[i]["env_extras"]["task_dir"]) for i in range(len(dataset))]


def _too_few(cfg: ApexTrainConfig, tasks: int) -> str | None:
    """SkyRL drops a batch that is not full: with fewer tasks than one there is no step."""
    batch = cfg.trainer.train_batch_size
    if tasks >= batch:
        return None
    return (
        f"{tasks} training tasks are fewer than trainer.train_batch_size={batch}, so there would "
        "be no step: name more tasks in data.train_data, or lower trainer.train_batch_size and "
        "trainer.policy_mini_batch_size"
    )


def _keys(
    cfg: ApexTrainConfig, directories: Sequence[Path], environment: Mapping[str, str]
) -> DryCheck:
    try:
        needed = needed_keys(directories, plugins=plugin_classes(cfg.apex), env=environment)
        found = require_keys(needed, environment)
    except ValueError as error:
        return DryCheck("failed", "keys", str(error))
    except Exception as error:  # a plugin's needed_env, over keyword arguments that do not fit
        given = {cls.__name__: redacted(dict(kwargs)) for cls, kwargs in plugin_classes(cfg.apex)}
        reason = f"{type(error).__name__}: {error}"
        return DryCheck("failed", "keys", f"{reason}, from the kwargs of one of {given}")
    return DryCheck("ok", "keys", ", ".join(sorted(found)) or "none needed")


def _sandbox(cfg: ApexTrainConfig) -> DryCheck:
    """The backend's own check of what it stands on: a program, a daemon, credentials."""
    name = cfg.apex.sandbox.name
    sandbox: Any = resolve("sandbox", name)
    preflight = getattr(sandbox, "preflight", None)
    if preflight is None:
        return DryCheck("skipped", "sandbox", f"{name} has no check of its own")
    try:
        preflight(dict(cfg.apex.sandbox.kwargs))
    except (Exception, SystemExit) as error:
        return DryCheck("failed", "sandbox", f"{name}: {error}")
    return DryCheck("ok", "sandbox", f"{name} is ready")
