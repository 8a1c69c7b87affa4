"""The HTTP application: which path is served by what, and how failures are answered."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .async_engine import EngineFailed, WeightUpdateError
from .control_plane import ControlPlane
from .data_plane import DataPlane, Served
from .protocol import ApiError
from .wire import ClientGone


def build_app(served: Served) -> Starlette:
    """The application; whoever serves it also runs ``served.engine.run()``."""
    data, control = DataPlane(served), ControlPlane(served.engine)
    posts = {
        "/inference/v1/generate": data.generate,
        "/v1/completions": data.completions,
        "/v1/chat/completions": data.chat_completions,
        "/v1/chat/completions/render": data.render,
        "/tokenize": data.tokenize,
        "/detokenize": data.detokenize,
        "/finish_session": data.finish_session,
        "/pause": control.pause,
        "/resume": control.resume,
        "/sleep": control.sleep,
        "/wake_up": control.wake_up,
        "/reset_prefix_cache": control.reset_prefix_cache,
        "/init_weight_transfer_engine": control.init_weight_transfer,
        "/start_weight_update": control.start_weight_update,
        "/update_weights": control.update_weights,
        "/finish_weight_update": control.finish_weight_update,
        "/collective_rpc": control.collective_rpc,
    }
    gets = {
        "/v1/models": data.models,
        "/is_paused": control.is_paused,
        "/is_sleeping": control.is_sleeping,
        "/get_world_size": control.world_size,
        "/health": control.health,
        "/stats": control.stats,
    }
    return Starlette(
        routes=[
            *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
        ],
        exception_handlers={
            ApiError: _answer_api_error,
            WeightUpdateError: _answer_bad_request,
            EngineFailed: _answer_engine_failed,
            ClientGone: _answer_nobody,
            HTTPException: _answer_no_such_endpoint,
        },
    )


async def _answer_api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, status_code=error.status)


async def _answer_bad_request(http: HttpRequest, error: Exception) -> Response:
    return await _answer_api_error(http, ApiError(str(error)))


async def _answer_engine_failed(http: HttpRequest, error: Exception) -> Response:
    failed = ApiError(str(error), status=500, kind="InternalServerError")
    return await _answer_api_error(http, failed)


async def _answer_no_such_endpoint(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path}: {error.detail}"
    missing = ApiError(message, status=error.status_code, kind="NotFoundError")
    return await _answer_api_error(http, missing)


async def _answer_nobody(http: HttpRequest, error: Exception) -> Response:
    return Response(status_code=499)
