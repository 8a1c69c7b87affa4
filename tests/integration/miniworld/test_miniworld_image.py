"""The built image: its start script serves a task, its tests grade an answer."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.ports import free_port

from skyrl_apex_miniworld.build import Built, build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("world")
    return build(folder, images=folder / "images")


@contextmanager
def started(built: Built, slug: str, folder: Path, **settings: str) -> Iterator[str]:
    port = free_port()
    environment = {
        **os.environ,
        "MINIWORLD_IMAGE": str(built.image_directory / "app"),
        "MINIWORLD_PORT": str(port),
        "MINIWORLD_HOST": "127.0.0.1",
        "MINIWORLD_FILESYSTEM": str(folder / "filesystem"),
        "MINIWORLD_APPS_DATA": str(folder / "apps_data"),
        **settings,
    }
    server = built.image_directory / "app/server"
    process = subprocess.Popen([sys.executable, "-I", "-B", str(server), slug], env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, f"ended with {process.returncode}"
            assert time.monotonic() < deadline, "no answer"
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.TransportError:
                time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def test_a_task_is_served_without_apps(built: Built, tmp_path: Path) -> None:
    from mcp import ClientSession
    from mcp.client import streamable_http

    connect = getattr(streamable_http, "streamable_http_client", None)
    connect = connect or streamable_http.streamablehttp_client
    slug = built.held_out[0].name

    async def names(url: str) -> list[str]:
        async with (
            connect(f"{url}/mcp/") as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            await session.initialize()
            return [tool.name for tool in (await session.list_tools()).tools]

    import anyio

    with started(built, slug, tmp_path) as url:
        assert anyio.run(names, url) == [
            "sheets_spreadsheet",
            "mail_mailbox",
            "shell_code_exec",
            "files_read_file",
        ]
        assert (tmp_path / "filesystem/Finance/sales.xlsx").exists()


def test_the_start_script_names_the_server_in_the_image(built: Built) -> None:
    script = built.image_directory / "app/tools/start.sh"
    assert script.stat().st_mode & 0o111
    assert "/app/server" in script.read_text()
    assert (built.image_directory / "app/server/__main__.py").exists()


def test_an_unknown_task_is_refused(built: Built) -> None:
    environment = {**os.environ, "MINIWORLD_IMAGE": str(built.image_directory / "app")}
    server = built.image_directory / "app/server"
    done = subprocess.run(
        [sys.executable, "-I", str(server), "no-such-task"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "no-such-task" in done.stderr


def test_a_start_costs_a_fraction_of_the_librarys(built: Built, tmp_path: Path) -> None:
    def cpu(kind: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with started(built, built.train[0].name, tmp_path / kind, MINIWORLD_SERVER=kind):
            pass
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    light, library = min(cpu("light") for _ in range(3)), cpu("library")
    print(f"CPU seconds of a start: light {light:.3f}, library {library:.3f}")
    assert light < library / 4


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("{answer}", 1.0),
        ("The answer is {answer} EUR.", 1.0),
        ("{thousands}", 1.0),
        ("1{answer}", 0.0),
        ("{answer} or perhaps 12", 0.0),
        ("I do not know", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_answers_are_graded(built: Built, tmp_path: Path, said: str | None, score: float) -> None:
    task = built.held_out[0]
    (golden,) = json.loads((task / "tests/golden_responses.json").read_text())
    script = (task / "tests/grade.py").read_text().replace("/logs/", f"{tmp_path}/")
    (tmp_path / "grade.py").write_text(script)
    (tmp_path / "agent").mkdir()
    (tmp_path / "verifier").mkdir()
    if said is not None:
        text = said.format(answer=golden["response"], thousands=f"{int(golden['response']):,}")
        (tmp_path / "agent/answer.txt").write_text(text)
    command = [sys.executable, "-I", "-S", str(tmp_path / "grade.py"), str(task / "tests")]
    subprocess.run(command, check=True, timeout=60)
    assert json.loads((tmp_path / "verifier/reward.json").read_text()) == {"reward": score}
    result = json.loads((tmp_path / "verifier/grading_results.json").read_text())
    assert result["grading_run_status"] == "completed"
    assert result["scoring_results"]["final_score"] == score
    (criterion,) = result["verifier_results"]
    assert (criterion["score"], criterion["status"]) == (score, "ok")
