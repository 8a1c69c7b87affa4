"""Samples through the Tinker sampler, in an environment that has Tinker's client.

Arguments are the server's URL and the model. Requests come as lines of JSON on standard input,
``{"prompt": [...], "params": {...}}``, and samples go out as lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from skyrl_apex_hookspecs import SamplingParams
from skyrl_apex_plugin.agent.samplers_hosted import TinkerSampler


async def main(url: str, model: str) -> None:
    sampler = TinkerSampler(base_model=model, base_url=url)
    for line in sys.stdin:
        request = json.loads(line)
        params = SamplingParams(**request["params"])
        sample = await sampler.sample(request["prompt"], params, session_id="s")
        answer = {
            "token_ids": sample.token_ids.tolist(),
            "logprobs": sample.logprobs.tolist(),
            "finish_reason": sample.finish_reason,
        }
        print(json.dumps(answer), flush=True)
    await sampler.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
