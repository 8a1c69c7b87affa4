"""Reading HTTP requests: JSON bodies, their validation, and clients that hang up."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HttpRequest

from .protocol import ApiError


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""


async def read_json(http: HttpRequest) -> dict[str, Any]:
    """The body as an object; an empty body is an empty object. Raises :class:`ApiError`."""
    content = await http.body()
    if not content:
        return {}
    try:
        body = json.loads(content)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def parse[Body: BaseModel](model: type[Body], raw: Any) -> Body:
    """``raw`` as ``model``. Raises :class:`ApiError` naming the first field at fault."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ApiError(f"{where}: {first['msg']}", param=where) from error


async def disconnected(http: HttpRequest) -> None:
    """Returns when the client has closed the connection. The body must have been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
