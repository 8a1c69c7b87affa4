"""Endpoints that hold and resume sampling, change weights, and report the engine's state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from .async_engine import AsyncEngine, PauseMode
from .protocol import ApiError, InitInfo, UpdateInfo
from .transfer import WeightMetadata
from .wire import parse, read_json

OK = {"status": "ok"}


class ControlPlane:
    """One method for each endpoint."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def pause(self, http: HttpRequest) -> Response:
        """vllm's defaults: abort, and clear the cache."""
        name = http.query_params.get("mode", PauseMode.ABORT.value)
        known = [mode.value for mode in PauseMode]
        if name not in known:
            raise ApiError(f"mode={name!r} is not one of {known}", param="mode")
        clear_cache = http.query_params.get("clear_cache", "true").lower() == "true"
        await self._engine.pause(PauseMode(name), clear_cache=clear_cache)
        return JSONResponse({"status": "paused"})

    async def resume(self, http: HttpRequest) -> Response:
        await self._engine.resume()
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, http: HttpRequest) -> Response:
        return JSONResponse({"is_paused": self._engine.paused is not None})

    async def sleep(self, http: HttpRequest) -> Response:
        await self._engine.sleep(http.query_params.getlist("tags"))
        return JSONResponse(OK)

    async def wake_up(self, http: HttpRequest) -> Response:
        await self._engine.wake_up(http.query_params.getlist("tags"))
        return JSONResponse(OK)

    async def is_sleeping(self, http: HttpRequest) -> Response:
        return JSONResponse({"is_sleeping": bool(self._engine.asleep)})

    async def reset_prefix_cache(self, http: HttpRequest) -> Response:
        body = await read_json(http)
        await self._engine.reset_prefix_cache(running=bool(body.get("reset_running_requests")))
        return JSONResponse(OK)

    async def world_size(self, http: HttpRequest) -> Response:
        return JSONResponse({"world_size": 1})

    async def health(self, http: HttpRequest) -> Response:
        return JSONResponse({}, status_code=200 if self._engine.failure is None else 503)

    async def stats(self, http: HttpRequest) -> Response:
        scheduler = self._engine.scheduler
        state = {
            "weight_version": scheduler.weight_version,
            "in_flight": self._engine.in_flight,
            "running": len(scheduler.running),
        }
        return JSONResponse(asdict(scheduler.counters) | state)

    async def init_weight_transfer(self, http: HttpRequest) -> Response:
        info = parse(InitInfo, (await read_json(http)).get("init_info"))
        await self._engine.join_transfer_group(
            address=info.master_address,
            port=info.master_port,
            rank=info.rank_offset,
            world_size=info.world_size,
        )
        return JSONResponse({"message": "weight transfer initialized"})

    async def start_weight_update(self, http: HttpRequest) -> Response:
        self._engine.start_weight_update()
        return JSONResponse({"message": "weight update started"})

    async def update_weights(self, http: HttpRequest) -> Response:
        await self._receive((await read_json(http)).get("update_info"))
        return JSONResponse({"message": "weights received"})

    async def finish_weight_update(self, http: HttpRequest) -> Response:
        return JSONResponse({"weight_version": await self._engine.finish_weight_update()})

    async def collective_rpc(self, http: HttpRequest) -> Response:
        """SkyRL 0.3.0 sends the three phases of an update by the names of its vllm extension."""
        body = await read_json(http)
        method, kwargs = body.get("method"), body.get("kwargs") or {}
        if method == "skyrl_start_weight_update":
            self._engine.start_weight_update()
        elif method == "update_weights_nccl":
            await self._receive(kwargs.get("update_info"))
        elif method == "skyrl_finish_weight_update":
            await self._engine.finish_weight_update()
        else:
            raise ApiError(f"method={method!r} is not known to the CPU engine", param="method")
        return JSONResponse({"results": [None]})

    async def _receive(self, update_info: Any) -> None:
        info = parse(UpdateInfo, update_info)
        await self._engine.receive_weights(
            WeightMetadata(info.names, info.dtype_names, info.shapes)
        )
