"""The Tinker sampler against SkyRL's own Tinker server, with its JAX backend and the sample model.

The server starts its engine through ``uv run --extra …``, so it needs a project that has those
extras; one is made in the tests' cache. Setting it up takes some minutes the first time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from skyrl_apex_plugin.tito.logprob_gate import LogprobMismatch, compare_logprobs

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
CLIENT = Path(__file__).with_name("tinker_client.py")
CACHE = Path(os.environ.get("SKYRL_APEX_TESTS_CACHE", "~/.cache/skyrl-apex-tests")).expanduser()
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SETUP_SECONDS = 900
START_SECONDS = 240
PROJECT = """\
[project]
name = "tinker-server"
version = "0"
requires-python = ">=3.12,<3.14"
dependencies = ["skyrl==0.3.0", "tinker==0.24.1", "pluggy>=1.5,<2", "httpx>=0.27,<1"]

[project.optional-dependencies]
tinker = ["skyrl[tinker]==0.3.0"]
jax = ["skyrl[jax]==0.3.0"]

[tool.uv]
package = false
"""
EXTRAS = ["--extra", "tinker", "--extra", "jax"]
# One shape for all requests: the backend compiles each anew.
PROMPT = [5, 6, 7, 8]
MAX_TOKENS = 8
NEVER = 1535

Sample = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Variables for ``uv`` and the server: its own PATH, a CPU, no model hub."""
    uv = shutil.which(
        "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    assert uv is not None, "uv is among the development requirements"
    return {
        **{k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")},
        "PATH": os.pathsep.join([str(Path(uv).parent), os.environ["PATH"]]),
        "UV_PYTHON": sys.executable,
        "UV_HTTP_TIMEOUT": "300",
        # As in scripts/setup.sh: behind a proxy only the system's store knows its certificate.
        **({"UV_NATIVE_TLS": "1", "UV_SYSTEM_CERTS": "1"} if SYSTEM_CERTIFICATES.exists() else {}),
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TINKER_API_KEY": "tml-for-a-local-server",
    }


@pytest.fixture(scope="module")
def project(environment: dict[str, str]) -> Path:
    folder = CACHE / "tinker"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    done = subprocess.run(
        ["uv", "sync", "--quiet", *EXTRAS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SETUP_SECONDS,
    )
    if "error sending request" in done.stderr or "dns error" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def server(
    project: Path,
    environment: dict[str, str],
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    scratch = tmp_path_factory.mktemp("tinker")
    port = free_port()
    backend = {"max_lora_adapters": 2, "max_lora_rank": 1, "sample_max_num_sequences": 1}
    command = ["uv", "run", *EXTRAS, "-m", "skyrl.tinker.api", "--base-model", str(checkpoint)]
    command += ["--backend-config", json.dumps(backend), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--database-url", f"sqlite:///{scratch / 'tinker.db'}"]
    command += ["--checkpoints-base", str(scratch / "checkpoints")]
    log = scratch / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=project,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Starting background engine" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        # The engine is a child of its own uv; only the group has them all.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    from skyrl_apex_miniworld.tiny_model import checkpoint

    return Path(checkpoint())


@pytest.fixture(scope="module")
def sample(
    server: str, project: Path, environment: dict[str, str], checkpoint: Path
) -> Iterator[Sample]:
    """``sample(prompt, temperature=…)`` through our sampler, which runs beside Tinker's client."""
    sources = os.pathsep.join(str(ROOT / name) for name in ("src", "hookspecs"))
    client = subprocess.Popen(
        [str(project / ".venv" / "bin" / "python"), str(CLIENT), server, str(checkpoint)],
        env={**environment, "PYTHONPATH": sources},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None and client.stdout is not None

    def ask(prompt: list[int], **params: Any) -> dict[str, Any]:
        wanted = {"max_tokens": MAX_TOKENS, "stop_token_ids": [NEVER], **params}
        client.stdin.write(json.dumps({"prompt": prompt, "params": wanted}) + "\n")
        client.stdin.flush()
        line = client.stdout.readline()
        assert line, "the client ended; its error stands above"
        answer: dict[str, Any] = json.loads(line)
        return answer

    yield ask
    client.stdin.close()
    client.wait(timeout=60)


@pytest.fixture(scope="module")
def logits(checkpoint: Path) -> Callable[[list[int]], Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def compute(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, :-1].float()

    return compute


def recomputed(logits: Any, ids: list[int]) -> Any:
    import torch

    chosen = torch.tensor(ids[1:])[:, None]
    return torch.log_softmax(logits, dim=-1).gather(1, chosen)[:, 0]


def play(sample: Sample, temperature: float) -> tuple[list[int], list[float], list[int]]:
    """Three turns with observations: IDs, stored logprobs and the loss mask."""
    ids, stored, mask = list(PROMPT), [0.0] * len(PROMPT), [0] * len(PROMPT)
    for seed in range(3):
        turn = sample(ids, temperature=temperature, seed=seed)
        assert len(turn["token_ids"]) == MAX_TOKENS and turn["finish_reason"] == "length"
        ids += [*turn["token_ids"], 9]
        stored += [*turn["logprobs"], 0.0]
        mask += [1] * MAX_TOKENS + [0]
    return ids, stored, mask


def test_logprobs_are_those_of_the_weights(sample: Sample, logits: Any) -> None:
    ids, stored, mask = play(sample, temperature=1.0)
    report = compare_logprobs(stored[1:], recomputed(logits(ids), ids), mask[1:])
    assert report.tokens == 3 * MAX_TOKENS
    report.require(mean_limit=1e-3)


def test_a_temperature_is_no_part_of_its_logprobs(sample: Sample, logits: Any) -> None:
    """So training refuses this sampler at any temperature but 1."""
    ids, stored, mask = play(sample, temperature=0.5)
    whole = logits(ids)
    compare_logprobs(stored[1:], recomputed(whole, ids), mask[1:]).require(mean_limit=1e-3)
    with pytest.raises(LogprobMismatch):
        scaled = recomputed(whole / 0.5, ids)
        compare_logprobs(stored[1:], scaled, mask[1:]).require(mean_limit=1e-3)


def test_a_stop_token_ends_the_turn_and_stays_in_it(sample: Sample, logits: Any) -> None:
    greedy = sample(PROMPT, temperature=0.0)["token_ids"]
    whole = logits([*PROMPT, *greedy])
    assert greedy == whole[len(PROMPT) - 1 :].argmax(dim=-1).tolist()
    stop = greedy[3]
    turn = sample(PROMPT, temperature=0.0, stop_token_ids=[stop])
    assert turn["token_ids"] == greedy[: greedy.index(stop) + 1]
    assert turn["finish_reason"] == "stop"
