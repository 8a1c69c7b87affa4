"""From the body of ``POST /apps`` to running servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .apps import APPS
from .catalogue import BundledServer, Server
from .tool import JsonObject
from .world import World

BUNDLED_COMMAND = "miniworld-app"
"""``{"transport": "stdio", "command": "miniworld-app", "args": [app]}`` is a bundled app."""

RETRY_SECONDS = 300.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0


class BadApps(Exception):
    """The body of ``POST /apps`` is not what it must be; ``detail`` says where."""

    def __init__(self, detail: list[JsonObject]) -> None:
        super().__init__(str(detail))
        self.detail = detail


class Launch:
    """Servers of one ``POST /apps``: those that came up, and why the others did not."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.failed: dict[str, JsonObject] = {}


def check_apps(body: Any) -> JsonObject:
    """The ``mcpServers`` of a body. Raises :class:`BadApps` naming every fault."""
    servers = body.get("mcpServers") if isinstance(body, dict) else None
    if not isinstance(servers, dict):
        raise BadApps([_fault(["body", "mcpServers"], "an object of servers is required")])
    faults = []
    for name, config in servers.items():
        where = ["body", "mcpServers", name]
        if not isinstance(config, dict):
            faults.append(_fault(where, "must be an object"))
        elif "transport" not in config:
            faults.append(_fault([*where, "transport"], "Field required"))
        elif "command" not in config and "url" not in config:
            faults.append(_fault(where, "a command or a url is required"))
    if faults:
        raise BadApps(faults)
    return servers


def launch(servers: Mapping[str, JsonObject], world: World, retry_seconds: float) -> Launch:
    """Start all servers; those that fail are tried again for up to ``retry_seconds``."""
    result = Launch()
    waiting = dict(servers)
    deadline = None
    attempts, pause = 0, _FIRST_PAUSE_S
    while True:
        attempts += 1
        for name, config in list(waiting.items()):
            try:
                result.servers[name] = _start(config, world)
            except Exception as error:  # any fault of a server counts as that server's failure
                result.failed[name] = {"error": _describe(error), "attempts": attempts}
            else:
                result.failed.pop(name, None)
                del waiting[name]
        deadline = deadline or time.monotonic() + retry_seconds
        if not waiting or time.monotonic() + pause > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    order = {name: result.servers[name] for name in servers if name in result.servers}
    result.servers = order
    return result


def _start(config: JsonObject, world: World) -> Server:
    if config.get("command") == BUNDLED_COMMAND:
        (app,) = config["args"]
        if app not in APPS:
            raise LookupError(f"no bundled app {app!r}; there are {', '.join(APPS)}")
        return BundledServer(APPS[app](world))
    from .external import ExternalServer  # needs the mcp library and its second of imports

    return ExternalServer(config)


def _describe(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _fault(where: list[str], message: str) -> JsonObject:
    return {"loc": where, "msg": message, "type": "missing"}
