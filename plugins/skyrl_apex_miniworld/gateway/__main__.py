"""Start the gateway: ``python -m skyrl_apex_miniworld.gateway [task_slug]``.

With a task the world's files are laid out and its servers started; without one the gateway
waits for ``POST /data/populate`` and ``POST /apps``. Settings are environment variables, since
parsing options would cost a fifth of the start: ``MINIWORLD_IMAGE`` (folder with ``world.json``;
/app), ``MINIWORLD_HOST`` (0.0.0.0), ``MINIWORLD_PORT`` (8000), ``MINIWORLD_FILESYSTEM``
(/filesystem), ``MINIWORLD_APPS_DATA`` (/.apps_data), ``MINIWORLD_RETRY_S`` (300: how long a
failed server is tried again), ``MINIWORLD_SERVER`` (``light`` or ``library``).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from typing import Any

from .archive import Subsystems
from .surface import Surface
from .world import open_world


def main() -> None:
    """Serve until the process is ended."""
    gc.disable()  # a short-lived process with little garbage
    env = os.environ.get
    image = env("MINIWORLD_IMAGE", "/app")
    address = (env("MINIWORLD_HOST", "0.0.0.0"), int(env("MINIWORLD_PORT", "8000")))
    retry_seconds = float(env("MINIWORLD_RETRY_S", "300"))
    subsystems = Subsystems(
        env("MINIWORLD_FILESYSTEM", "/filesystem"), env("MINIWORLD_APPS_DATA", "/.apps_data")
    )
    kind = env("MINIWORLD_SERVER", "light")
    task = _task(image, sys.argv[1]) if len(sys.argv) > 1 else None
    parsed = os.path.join(image, "worlds", task["world"], "parsed.json") if task else None
    if task:
        files = os.path.join(image, "worlds", task["world"], "filesystem")
        shutil.copytree(files, subsystems.filesystem, dirs_exist_ok=True)
    world = open_world(subsystems.filesystem, parsed)

    def start_task(surface: Surface) -> None:
        if task:
            status, answer = surface.swap(task["servers"], task["allowed_tool_names"])
            if status != 200:
                print(f"world of task {sys.argv[1]}: {answer}", file=sys.stderr, flush=True)

    if kind == "light":
        from .light import LightGateway

        with LightGateway(address, world, subsystems, retry_seconds) as gateway:
            start_task(gateway.surface)
            gateway.serve_forever()
    elif kind == "library":
        from .library import serve

        serve(address, world, subsystems, retry_seconds, start_task)
    else:
        sys.exit(f"MINIWORLD_SERVER={kind!r}: must be 'light' or 'library'")


def _task(image: str, slug: str) -> Any:
    path = os.path.join(image, "world.json")
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    if slug not in index["tasks"]:
        sys.exit(f"no task {slug!r} in {path}, which has {len(index['tasks'])} tasks")
    world = index["tasks"][slug]
    return {"world": world, **index["worlds"][world]}


if __name__ == "__main__":
    main()
