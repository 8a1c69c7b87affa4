"""Directories of sandboxes on the host, who owns them, and what a killed owner left behind."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from skyrl_apex_sandbox_kit import is_alive, process_identity

_OWNER = "owner.json"


def state_root() -> Path:
    """``$APEX_SANDBOX_DIR``, else ``skyrl-apex-<uid>`` in the directory for temporary files.

    :raises PermissionError: when the directory belongs to somebody else.
    """
    configured = os.environ.get("APEX_SANDBOX_DIR")
    root = (
        Path(configured) if configured else Path(tempfile.gettempdir(), f"skyrl-apex-{os.getuid()}")
    )
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{root} belongs to uid {root.stat().st_uid}, not to uid {os.getuid()}: "
            "set APEX_SANDBOX_DIR to a directory of your own"
        )
    return root


@dataclass(frozen=True, slots=True)
class SandboxState:
    """One sandbox's directory. It exists from before the first process until after the last."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def backing(self) -> Path:
        """Parent of the private directories."""
        return self.directory / "fs"

    @classmethod
    def create(cls) -> SandboxState:
        state = cls(state_root() / f"sandbox-{uuid.uuid4().hex[:12]}")
        state.directory.mkdir(mode=0o700)
        state.backing.mkdir(mode=0o755)
        state.record(init=None, cgroups=())
        return state

    def record(self, *, init: int | None, cgroups: tuple[str, ...]) -> None:
        """Write down who owns the sandbox and what must go with it."""
        record = {
            "owner": process_identity(os.getpid()),
            "init": process_identity(init) if init is not None else None,
            "cgroups": cgroups,
        }
        temporary = self.directory / f"{_OWNER}.tmp"
        temporary.write_text(json.dumps(record))
        os.replace(temporary, self.directory / _OWNER)

    def recorded(self) -> dict[str, object]:
        path = self.directory / _OWNER
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def owner_alive(self) -> bool:
        return is_alive(str(self.recorded().get("owner")))

    def remove(self) -> None:
        """Delete the directory; whatever the sandbox made of its permissions."""
        shutil.rmtree(self.directory, onexc=_make_removable)


def _make_removable(function: object, path: str, error: BaseException) -> None:
    """Retry after opening the directory that forbade it (a host user who is not root)."""
    if isinstance(error, FileNotFoundError):
        return
    if not isinstance(error, PermissionError):
        raise error
    parent = os.path.dirname(path)
    os.chmod(parent, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path, onexc=_make_removable)
    else:
        os.unlink(path)


def leftover_sandboxes() -> list[SandboxState]:
    """Sandboxes whose owner process is gone."""
    return [
        state
        for path in sorted(state_root().glob("sandbox-*"))
        if not (state := SandboxState(path)).owner_alive()
    ]
