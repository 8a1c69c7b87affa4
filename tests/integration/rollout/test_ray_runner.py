"""Attempts in worker processes of a local Ray cluster with two nodes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyrl_apex_hookspecs import EndedTrial, Outcome, Task
from skyrl_apex_plugin.rollout.attempt import Attempt

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")


pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs each; the second is marked as the place of rollouts."""
    nodes = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=2, resources={"rollout": 1.0})
    ray.init(address=nodes.address, include_dashboard=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def attempt(name: str) -> Attempt:
    task = Task(task_id=name, directory=Path("/nowhere"), instruction="")
    config: Any = SimpleNamespace(trials_dir="/nowhere", trial_name=name)
    return Attempt(task=task, config=config, number=0)


def fake_worker(directory: Path) -> type:
    """A worker whose attempts say where they run, or wait, or die, as their name asks."""

    class Worker:
        async def run(self, attempt: Attempt) -> EndedTrial:
            name = attempt.task.task_id
            if name.startswith("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if name.startswith("full"):  # as Ray puts it when its memory monitor kills a worker
                raise ray.exceptions.OutOfMemoryError("the node ran low on memory")
            if name.startswith("wait"):
                try:
                    (directory / f"{name}.started").touch()
                    await asyncio.sleep(600)
                finally:
                    await asyncio.sleep(0.1)
                    (directory / f"{name}.cleaned").touch()
            await asyncio.sleep(0.2)
            where = f"{os.getpid()} {ray.get_runtime_context().get_node_id()}"
            return EndedTrial(
                task=attempt.task, outcome=Outcome.COMPLETE, attempt=0, error_message=where
            )

    return Worker


@pytest.fixture
def runner(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from skyrl_apex_plugin.rollout import ray_runner

    monkeypatch.setattr(ray_runner, "TrialWorker", fake_worker(tmp_path))

    def build(**settings: Any) -> Any:
        return ray_runner.RayRunner(**{"max_concurrent": 8, "trials_per_worker": 4, **settings})

    return build


async def test_trials_are_packed_into_long_lived_workers(runner: Any) -> None:
    built = runner(worker_cpus=0.5)
    try:
        first = await asyncio.gather(*(built.run(attempt(f"a{i}")) for i in range(8)))
        second = await asyncio.gather(*(built.run(attempt(f"b{i}")) for i in range(8)))
    finally:
        await built.aclose()
    assert [ended.task.task_id for ended in first] == [f"a{i}" for i in range(8)]
    processes = {ended.error_message.split()[0] for ended in [*first, *second]}
    assert len(processes) == 2


async def test_workers_go_where_the_resources_are(runner: Any, cluster: Any) -> None:
    built = runner(worker_cpus=0.5, worker_resources={"rollout": 0.1})
    try:
        ended = await asyncio.gather(*(built.run(attempt(f"a{i}")) for i in range(8)))
    finally:
        await built.aclose()
    marked = {node["NodeID"] for node in ray.nodes() if "rollout" in node["Resources"]}
    assert {each.error_message.split()[1] for each in ended} == marked


@pytest.mark.parametrize("end", ["die", "full"])
async def test_the_trials_of_a_dead_worker_can_be_retried(runner: Any, end: str) -> None:
    built = runner(max_concurrent=1, trials_per_worker=1, worker_cpus=0.5)
    try:
        dead = await built.run(attempt(end))
        alive = await built.run(attempt("again"))
    finally:
        await built.aclose()
    assert dead.outcome is Outcome.SETUP_ERROR
    assert "worker process of this trial died" in dead.error_message
    assert alive.outcome is Outcome.COMPLETE


async def test_cancelling_waits_for_the_clean_up_in_the_worker(runner: Any, tmp_path: Path) -> None:
    built = runner(max_concurrent=1, trials_per_worker=1, worker_cpus=0.5)
    try:
        going = asyncio.create_task(built.run(attempt("wait")))
        while not (tmp_path / "wait.started").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert (tmp_path / "wait.cleaned").exists()
    finally:
        await built.aclose()
