"""An example of ``apex_prepare_world``: a slides server that rejects its own answers.

Its output schemas say ``"nullable": true``, which is OpenAPI and means nothing in JSON Schema, so
the server's own validation refuses the nulls that it returns for unused fields, and every call of
the tool fails after it has run. The patch writes the same thing in JSON Schema:
``"type": ["string", "null"]``.
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from skyrl_apex_hookspecs import SetupError, Task, hookimpl

logger = logging.getLogger(__name__)

SERVERS = "/app"
SCRIPT = Path(__file__).parent / "relax_nullable.py"
INSIDE = "/tmp/apex_relax_nullable.py"


@hookimpl
async def apex_prepare_world(environment: Any, task: Task) -> None:
    faulty = await _faulty_files(environment)
    if not faulty:
        return
    await environment.upload_file(source_path=SCRIPT, target_path=INSIDE)
    result = await environment.exec(
        f'"${{APEX_PYTHON:-python3}}" {INSIDE} {shlex.join(faulty)} && rm {INSIDE}',
        timeout_sec=60,
        user="root",
    )
    if result.return_code != 0:
        raise SetupError(f"patching {faulty}: {result.stderr or result.stdout}")
    logger.info("%s: nullable output schemas patched in %s", task.task_id, ", ".join(faulty))


async def _faulty_files(environment: Any) -> list[str]:
    """Schema files of slides servers that hold the fault."""
    result = await environment.exec(
        f"find {SERVERS} -path '*slides*' -name '*.json' -not -path '*/node_modules/*' "
        "-exec grep -lE '\"nullable\": *true' {} + 2>/dev/null || true",
        timeout_sec=60,
        user="root",
    )
    return [line for line in (result.stdout or "").splitlines() if line]
