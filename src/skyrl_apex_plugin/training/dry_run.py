"""Everything about a run that can be checked without a GPU and without starting anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skyrl_apex_plugin.discovery import resolve
from skyrl_apex_plugin.discovery.checkup import check_versions

from .keys import needed_keys, plugin_classes, require_keys

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
    """Versions, configuration, data, keys and sandbox, in this order."""
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

    try:
        cfg = ApexTrainConfig.from_cli_overrides(list(arguments))
        prepare_config(cfg)
        validate = validate_cfg if purpose == "train" else validate_generator_cfg
        validate(cfg)
    except (AssertionError, NotImplementedError, ValueError, RuntimeError) as error:
        return None, DryCheck("failed", "config", str(error) or repr(error))
    except Exception as error:  # a validator of SkyRL, or a name of a plugin
        return None, DryCheck("failed", "config", f"{type(error).__name__}: {error}")
    return cfg, DryCheck("ok", "config", "accepted by SkyRL's parser and validators")


def _data(purpose: Purpose, cfg: ApexTrainConfig) -> tuple[list[Path], DryCheck]:
    from skyrl_apex_plugin.data.dataset import TaskDataset

    sources = list(cfg.data.val_data)
    if purpose == "train":
        sources = [*cfg.data.train_data, *(sources if cfg.trainer.eval_interval > 0 else ())]
    absent = [source for source in sources if not Path(source).expanduser().exists()]
    if absent:
        return [], DryCheck("failed", "data", f"not there: {', '.join(map(str, absent))}")
    try:
        dataset = TaskDataset(sources, where=cfg.apex.tasks.where)
    except ValueError as error:
        return [], DryCheck("failed", "data", str(error))
    directories = [Path(dataset[i]["env_extras"]["task_dir"]) for i in range(len(dataset))]
    return directories, DryCheck("ok", "data", f"{len(directories)} tasks")


def _keys(
    cfg: ApexTrainConfig, directories: Sequence[Path], environment: Mapping[str, str]
) -> DryCheck:
    try:
        needed = needed_keys(directories, plugins=plugin_classes(cfg.apex), env=environment)
        found = require_keys(needed, environment)
    except ValueError as error:
        return DryCheck("failed", "keys", str(error))
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
