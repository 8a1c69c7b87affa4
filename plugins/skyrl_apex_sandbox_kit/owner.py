"""Which process owns a sandbox, written so that it can be checked after that process is gone."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

OWNER_LABEL = "skyrl-apex.owner"
"""Label, or tag, that every hosted sandbox carries; its value is :func:`owner_label`."""


def process_identity(pid: int) -> str | None:
    """PID and start time, so that a reused PID is not taken for the process; ``None`` if dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else f"{pid}-{fields[19]}"


def is_alive(identity: str) -> bool:
    """Whether the process of an identity still runs on this machine."""
    pid = identity.partition("-")[0]
    return pid.isdecimal() and process_identity(int(pid)) == identity


def owner_label() -> str:
    """Label of this process: the machine's name and the identity, in characters any label takes."""
    return f"{_machine()}.{process_identity(os.getpid())}"


def owner_is_gone(label: str) -> bool:
    """Whether the label's process was of this machine and has ended.

    Processes of other machines cannot be seen from here and count as alive.
    """
    machine, _, identity = label.rpartition(".")
    return machine == _machine() and not is_alive(identity)


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40]
