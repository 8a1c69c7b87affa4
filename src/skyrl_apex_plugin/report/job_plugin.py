"""harbor job plugin ``apex``: ``harbor run --plugin apex`` leaves a run record and a report."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harbor.models.job.plugin import BaseJobPlugin

from skyrl_apex_plugin.files import write_atomic
from skyrl_apex_plugin.report import DEFAULT_PAGES
from skyrl_apex_plugin.report.html import write_report
from skyrl_apex_plugin.report.run import SCHEMA, entry_of, load_run, trial_dirs

logger = logging.getLogger(__name__)


class ApexJobPlugin(BaseJobPlugin):
    """Writes ``run.json``, ``trials.jsonl`` and ``report.html`` into the job's directory.

    :param pages: trajectories that get a page in the report.
    :param tokenizer: directory of the tokenizer that turns token IDs into text.
    """

    def __init__(
        self, *, pages: int | str = DEFAULT_PAGES, tokenizer: str | None = None, **kwargs: Any
    ) -> None:
        if kwargs:
            raise ValueError(
                f"plugin apex: unknown settings {sorted(kwargs)}; known: pages, tokenizer"
            )
        self._pages = int(pages)
        self._tokenizer = tokenizer
        self._directory: Path | None = None

    async def on_job_start(self, job: Any) -> None:
        """Note where the job writes, and say what runs."""
        self._directory = Path(job.job_dir)
        started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        agents = ", ".join(str(agent.import_path or agent.name) for agent in job.config.agents)
        document = {
            "schema": SCHEMA,
            "name": self._directory.name,
            "kind": "harbor job",
            "started_at": started,
            "agent": agents,
        }
        await asyncio.to_thread(
            write_atomic, self._directory / "run.json", json.dumps(document, indent=1)
        )

    async def on_job_end(self, job_result: Any) -> None:
        """Write the record of every trial, then the report."""
        if self._directory is not None:
            target = await asyncio.to_thread(self._write, self._directory)
            logger.info("report: %s", target)

    def _write(self, directory: Path) -> Path:
        entries = [{"event": "ended", **entry_of(trial)} for trial in trial_dirs(directory)]
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        write_atomic(directory / "trials.jsonl", lines)
        return write_report(
            load_run(directory),
            directory / "report.html",
            pages=self._pages,
            tokenizer=self._tokenizer,
        )
