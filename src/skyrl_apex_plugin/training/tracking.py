"""SkyRL's tracker, with ratios in place of bare sums and a copy in the run's record."""

from __future__ import annotations

from typing import Any

from skyrl.train.utils.tracking import Tracking

from skyrl_apex_plugin.rollout.metrics import with_ratios
from skyrl_apex_plugin.rollout.record import RunRecord


class ApexTracking(Tracking):  # type: ignore[misc]
    """Sends what SkyRL's tracker sends, to the same backend."""

    def __init__(self, *args: Any, record: RunRecord, **kwargs: Any) -> None:
        self._record = record
        super().__init__(*args, **kwargs)

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        data = with_ratios(data)
        self._record.metrics(step, data)
        super().log(data, step=step, commit=commit)
