"""Code: a shell command in the world's file system. The only tool here that can change it."""

from __future__ import annotations

from ..tool import ApplicationError, JsonObject, Param, Tool
from ..world import World
from .meta import schema_tool

_TIMEOUT_S = 120


def tools(world: World) -> list[Tool]:
    """``code_exec`` and ``code_exec_schema``."""

    def code_exec(request: JsonObject) -> JsonObject:
        import subprocess  # here, so that trials that run no code do not load it

        try:
            done = subprocess.run(
                ["/bin/sh", "-c", request["code"]],
                cwd=world.files.root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ApplicationError(f"no result after {_TIMEOUT_S} s") from error
        return {
            "output": done.stdout.decode("utf-8", errors="replace").strip(),
            "stderr": done.stderr.decode("utf-8", errors="replace").strip() or None,
            "exit_code": done.returncode,
        }

    tool = Tool(
        "code_exec",
        "Run a shell command in /filesystem.",
        (Param("code", "string"),),
        code_exec,
        envelope="request",
        read_only=False,
    )
    return [tool, schema_tool(tool)]
