"""What the host user may do, and the user IDs that a sandbox gets from it."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

_CAP_SYS_ADMIN = 21
_RANGE = 65536
_FIRST_BLOCK = 0x7000_0000 // _RANGE
_BLOCKS = 4000
"""Above the ranges that systemd and user managers hand out."""


@dataclass(frozen=True, slots=True)
class HostPrivileges:
    """With full rights every sandbox gets 65,536 user IDs of its own that own nothing on the
    host; without, the host user is the sandbox's only user."""

    single_user: bool

    @classmethod
    def detect(cls) -> HostPrivileges:
        status = dict(
            line.split(":\t", 1)
            for line in Path("/proc/self/status").read_text().splitlines()
            if ":\t" in line
        )
        capable = int(status["CapEff"], 16) >> _CAP_SYS_ADMIN & 1
        mapped = [
            int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines()
        ]
        everything_mapped = sum(mapped) >= (_FIRST_BLOCK + _BLOCKS) * _RANGE
        return cls(single_user=not (os.geteuid() == 0 and capable and everything_mapped))

    def choose_uids(self, name: str) -> tuple[int, int]:
        """First host uid and number of uids of the sandbox ``name``."""
        if self.single_user:
            return os.getuid(), 1
        block = random.Random(name).randrange(_BLOCKS)
        return (_FIRST_BLOCK + block) * _RANGE, _RANGE

    def bwrap_arguments(self) -> list[str]:
        if self.single_user:
            return ["--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"]
        return ["--cap-drop", "ALL"]
