"""SkyRL's own client drives the engine: both planes and the weight transfer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import torch
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)
from skyrl.backends.skyrl_train.weight_sync import BroadcastInitInfo
from tests.ports import free_port
from transformers import AutoTokenizer, Qwen3ForCausalLM

from skyrl_apex_plugin.embedded.launch import EngineHandle
from skyrl_apex_plugin.embedded.transfer import TransferGroup

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]


@pytest.fixture
async def client(engine: EngineHandle, checkpoint: Path) -> AsyncIterator[Any]:
    client = RemoteInferenceClient(
        proxy_url=engine.url,
        server_urls=[engine.url],
        data_parallel_size=1,
        model_name=str(checkpoint),
    )
    yield client
    await client.teardown()


async def sampled_tokens(engine: EngineHandle) -> int:
    async with httpx.AsyncClient() as http:
        count: int = (await http.get(f"{engine.url}/stats")).json()["sampled_tokens"]
        return count


def params(**changes: Any) -> dict[str, Any]:
    return {"max_tokens": 6, "temperature": 1.0, "logprobs": 0, "min_tokens": 6, **changes}


async def test_generate_returns_ids_logprobs_and_text(client: Any) -> None:
    output = await client.generate(
        {"prompt_token_ids": PROMPTS, "sampling_params": params(), "session_ids": ["a", "b"]}
    )
    assert [len(ids) for ids in output["response_ids"]] == [6, 6]
    assert [len(logprobs) for logprobs in output["response_logprobs"]] == [6, 6]
    assert output["stop_reasons"] == ["length", "length"]
    assert output["responses"] == await client.detokenize(output["response_ids"])
    for session in ("a", "b", "never seen"):
        await client.finish_session(session)


async def test_tinker_samples_carry_prompt_logprobs(client: Any) -> None:
    answer = await client.sample(
        {
            "json": {
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPTS[1]}]},
                "num_samples": 2,
                "sampling_params": {"max_tokens": 4, "temperature": 1.0, "seed": 1},
                "prompt_logprobs": True,
                "topk_prompt_logprobs": 3,
            }
        }
    )
    assert [len(sequence["logprobs"]) for sequence in answer["sequences"]] == [4, 4]
    assert answer["prompt_logprobs"][0] is None
    assert all(logprob < 0 for logprob in answer["prompt_logprobs"][1:])
    assert all(len(top) == 3 for top in answer["topk_prompt_logprobs"][1:])


async def test_openai_calls_and_rendering_agree_with_a_local_tokenizer(
    client: Any, checkpoint: Path
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    rendered = await client.render_chat_completion({"json": {"messages": messages}})
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert rendered["token_ids"] == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert await client.tokenize(["hi"]) == [tokenizer.encode("hi")]
    chat = {"messages": messages, "max_tokens": 3, "session_id": "s"}
    answer = await client.chat_completion({"json": chat})
    assert answer["choices"][0]["message"]["role"] == "assistant"
    completed = await client.completion({"json": {"prompt": PROMPTS[0], "max_tokens": 3}})
    assert completed["usage"]["prompt_tokens"] == 3


async def test_errors_reach_the_caller_with_the_engines_words(client: Any) -> None:
    batch = {"prompt_token_ids": [[1] * 512], "sampling_params": params()}
    with pytest.raises(aiohttp.ClientResponseError, match="maximum context length") as raised:
        await client.generate(batch)
    assert raised.value.status == 400
    with pytest.raises(aiohttp.ClientResponseError, match="does not exist"):
        await client.generate({**batch, "prompt_token_ids": PROMPTS}, model="skyrl-lora")


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
async def test_pause_and_resume(client: Any, engine: EngineHandle, mode: str) -> None:
    long = {"prompt_token_ids": [[9, 9]], "sampling_params": params(max_tokens=400, min_tokens=400)}
    before = await sampled_tokens(engine)
    running = asyncio.create_task(client.generate(long))
    while await sampled_tokens(engine) == before:
        pass
    await client.pause(mode)
    late = asyncio.create_task(client.generate({**long, "sampling_params": params()}))
    if mode == "keep":
        frozen = await sampled_tokens(engine)
        await asyncio.wait({running, late}, timeout=0.2)
        assert await sampled_tokens(engine) == frozen and not running.done()
    else:
        await asyncio.wait({running}, timeout=60)
        assert running.done()
    assert not late.done()
    await client.resume()
    await late
    output = await running
    if mode == "abort":
        assert output["stop_reasons"] == ["abort"]
        assert 0 < len(output["response_ids"][0]) < 400
        assert len(output["response_logprobs"][0]) == len(output["response_ids"][0])
    else:
        assert output["stop_reasons"] == ["length"]
        assert len(output["response_ids"][0]) == 400


async def test_sleep_and_wake_up_as_a_colocated_trainer_calls_them(client: Any) -> None:
    await client.sleep()
    late = asyncio.create_task(
        client.generate({"prompt_token_ids": PROMPTS, "sampling_params": params()})
    )
    for tags in (["weights"], ["kv_cache"]):
        done, _ = await asyncio.wait({late}, timeout=0.05)
        assert not done
        await client.wake_up(tags=tags)
    await late
    await client.reset_prefix_cache(reset_running_requests=True)


async def test_weights_arrive_over_gloo_while_requests_run(client: Any, checkpoint: Path) -> None:
    assert await client.get_world_size() == (1, 1)
    model = Qwen3ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    group = await join(client)
    long = {"prompt_token_ids": [[9]], "sampling_params": params(max_tokens=300, min_tokens=300)}
    running = asyncio.create_task(client.generate(long))
    changed = {name: tensor * 1.05 for name, tensor in original.items()}
    await send(client, group, changed)
    model.load_state_dict(changed)
    assert await disagreement(client, model) < 1e-4
    assert len((await running)["response_ids"][0]) == 300
    await send(client, group, original)
    assert await disagreement(client, model) > 1e-3


async def join(client: Any) -> TransferGroup:

    port = free_port()
    info = BroadcastInitInfo(
        master_addr="127.0.0.1",
        master_port=port,
        rank_offset=1,
        world_size=2,
        override_existing_receiver=True,
    )
    joining = asyncio.to_thread(
        lambda: TransferGroup(address="127.0.0.1", port=port, rank=0, world_size=2)
    )
    group, _ = await asyncio.gather(joining, client.init_weight_update_communicator(info))
    return group


async def send(client: Any, group: TransferGroup, weights: dict[str, torch.Tensor]) -> None:
    metadata = {
        "names": list(weights),
        "dtype_names": ["float32"] * len(weights),
        "shapes": [list(tensor.shape) for tensor in weights.values()],
    }
    await client.start_weight_update()
    receiving = asyncio.create_task(client.update_weights_nccl(metadata))
    await asyncio.to_thread(group.send, weights.values())
    await receiving
    await client.finish_weight_update()


async def disagreement(client: Any, model: Qwen3ForCausalLM) -> float:
    """Mean difference between the engine's logprobs of a sample and the model's."""
    options = params(max_tokens=20, min_tokens=0, ignore_eos=True)
    output = await client.generate({"prompt_token_ids": PROMPTS[:1], "sampling_params": options})
    ids = output["response_ids"][0]
    with torch.no_grad():
        logprobs = model(torch.tensor([PROMPTS[0] + ids])).logits[0].log_softmax(-1)
    expected = logprobs[range(2, 22), ids]
    return (torch.tensor(output["response_logprobs"][0]) - expected).abs().mean().item()
