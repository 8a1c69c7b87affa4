"""What the gateway answers apart from MCP, free of any HTTP server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from .archive import BadSubsystem, Subsystems, populate
from .catalogue import Catalogue
from .launch import RETRY_SECONDS, BadApps, check_apps, launch
from .tool import JsonObject
from .world import World

Answer = tuple[int, JsonObject]


class Surface:
    """Health, populate and apps over one world.

    ``serve`` is called with every new catalogue: whoever speaks MCP shows that one from then on.
    """

    def __init__(
        self,
        world: World,
        subsystems: Subsystems,
        serve: Callable[[Catalogue], None],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.subsystems = subsystems
        self._world = world
        self._serve = serve
        self._retry_seconds = retry_seconds
        self._current: Catalogue | None = None

    def populate(self, subsystem: str, content_type: str, body: bytes) -> Answer:
        """``POST /data/populate``: 400 bad subsystem, 422 no file, 500 not gzip."""
        archive = form_file(content_type, body, "archive")
        if archive is None:
            fault = {"loc": ["body", "archive"], "msg": "Field required", "type": "missing"}
            return 422, {"detail": [fault]}
        try:
            return 200, populate(self.subsystems, subsystem, archive)
        except BadSubsystem as error:
            return 400, {"detail": str(error)}
        except Exception as error:  # whatever is wrong with an archive is told as it is
            return 500, {"detail": f"{type(error).__name__}: {error}"}

    def apps(self, body: bytes) -> Answer:
        """``POST /apps``: swaps the servers. 422 for a bad body, 503 when a server stays down."""
        try:
            request: Any = json.loads(body)
            servers = check_apps(request)
        except BadApps as error:
            return 422, {"detail": error.detail}
        except ValueError as error:
            return 422, {"detail": [{"loc": ["body"], "msg": str(error), "type": "json_invalid"}]}
        return self.swap(servers, request.get("allowed_tool_names"))

    def swap(self, servers: JsonObject, allowed: list[str] | None) -> Answer:
        """Start ``servers`` and show their tools in place of the present ones."""
        started = time.monotonic()
        launched = launch(servers, self._world, self._retry_seconds)
        previous, self._current = self._current, Catalogue(launched.servers, allowed)
        self._serve(self._current)
        if previous is not None:
            previous.close()
        if launched.failed:
            failed = list(launched.failed)
            error = f"{len(failed)} server(s) failed to start: {', '.join(failed)}"
            detail = {"error": error, "failed_servers": failed, "details": launched.failed}
            return 503, {"detail": detail}
        milliseconds = round(1000 * (time.monotonic() - started), 1)
        return 200, {"servers": list(servers), "duration_ms": milliseconds}

    def close(self) -> None:
        """Stop all servers."""
        if self._current is not None:
            self._current.close()


def form_file(content_type: str, body: bytes, field: str) -> bytes | None:
    """A file of a multipart form, or ``None`` when the form has no such field."""
    from email.message import Message

    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str):
        return None
    for part in body.split(b"--" + boundary.encode("latin-1")):
        head, found, content = part.partition(b"\r\n\r\n")
        if found and _field_name(head) == field:
            return content.removesuffix(b"\r\n")
    return None


def _field_name(head: bytes) -> str | None:
    from email.parser import HeaderParser

    headers = HeaderParser().parsestr(head.strip().decode("latin-1"))
    name = headers.get_param("name", header="content-disposition")
    return name if isinstance(name, str) else None
