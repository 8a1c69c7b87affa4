"""Who owns a sandbox, and who a user inside is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from skyrl_apex_local.privileges import Identity, find_user
from skyrl_apex_sandbox_kit import is_alive, owner_is_gone, owner_label, process_identity

PASSWD = ["root:*:0:0:root:/root:/bin/sh\n", "clerk:*:1001:50::/home/clerk:/bin/sh\n", "broken\n"]


def test_a_process_is_alive_until_it_ends_even_when_its_pid_is_used_again() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(child.pid)
    assert identity is not None
    assert is_alive(identity)
    assert not is_alive(f"{child.pid}-1"), "another start time is another process"
    child.communicate(b"\n")
    assert not is_alive(identity)


def test_only_this_machines_dead_processes_are_gone() -> None:
    assert not owner_is_gone(owner_label())
    machine = owner_label().rpartition(".")[0]
    assert owner_is_gone(f"{machine}.{os.getpid()}-1")
    assert not owner_is_gone("some-other-machine.1-1")
    assert not owner_is_gone("")


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, Identity(0, 0, "/root")),
        ("clerk", Identity(1001, 50, "/home/clerk")),
        (1001, Identity(1001, 50, "/home/clerk")),
        ("clerk:0", Identity(1001, 0, "/home/clerk")),
        ("4242", Identity(4242, 4242)),
        ("4242:7", Identity(4242, 7)),
    ],
)
def test_users_are_found_by_name_and_number(user: str | int | None, expected: Identity) -> None:
    assert find_user(user, PASSWD) == expected


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(LookupError, match="'ghost' is not in the sandbox's /etc/passwd"):
        find_user("ghost", PASSWD)
