"""User namespaces, identities and capabilities of the processes inside a sandbox.

Runs in forks of the template process. Standard library only, and nothing here may import
lazily: after the mount namespace is entered, the import path belongs to the sandbox.
"""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass

_KEPT_CAPABILITIES = (
    0,  # CHOWN
    1,  # DAC_OVERRIDE
    3,  # FOWNER
    4,  # FSETID
    5,  # KILL
    6,  # SETGID
    7,  # SETUID
    10,  # NET_BIND_SERVICE
    18,  # SYS_CHROOT
)
"""What root inside a sandbox keeps, all of it valid in the sandbox's own user namespace only."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP = 24
_PR_SET_DUMPABLE = 4
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
with open("/proc/sys/kernel/cap_last_cap") as _file:
    _LAST_CAPABILITY = int(_file.read())


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, argument: int) -> None:
    _checked(_libc.prctl(option, argument, 0, 0, 0), f"prctl({option}, {argument})")


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_from_debuggers() -> None:
    """No process of the same user may trace this one or read its memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def cut_bounding_set() -> None:
    """No program that is executed from here on gains more than containers keep."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in _KEPT_CAPABILITIES:
            _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_capabilities(kept: tuple[int, ...]) -> None:
    """Keep these capabilities of the current ones and give up the others."""
    mask = sum(1 << capability for capability in kept)
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    # effective, permitted, inheritable for capabilities 0-31, then for 32-63
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _checked(_libc.capset(header, data), "capset")


def create_user_namespace(first_uid: int, count: int) -> int:
    """Make a user namespace that maps IDs 0.. to ``first_uid``.. and allows no nested one.

    The caller is root on the host. Returns a descriptor of the namespace; no process is in it.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            os.unshare(os.CLONE_NEWUSER)
            theirs.send(b"1")
            theirs.recv(1)
            # /proc is the host's here; the limit is that of the namespace the writer is in.
            with open("/proc/sys/user/max_user_namespaces", "w") as file:
                file.write("0")
            theirs.send(b"1")
            theirs.recv(1)
            os._exit(0)
        finally:
            os._exit(1)
    theirs.close()
    try:
        _expect(ours, "unshare(CLONE_NEWUSER) failed")
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{kind}", "w") as file:
                file.write(f"0 {first_uid} {count}")
        ours.send(b"1")
        _expect(ours, "could not forbid nested user namespaces")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _expect(conn: socket.socket, failure: str) -> None:
    if not conn.recv(1):
        raise OSError(f"user namespace for the sandbox: {failure}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A user inside the sandbox."""

    uid: int
    gid: int
    home: str = "/"


def find_user(user: str | int | None, passwd_lines: list[str]) -> Identity:
    """Resolve ``None`` (root), a uid, ``uid:gid`` or a name of the sandbox's /etc/passwd.

    Done by hand: the C library would load modules from the sandbox's file system.

    :raises LookupError: for a name that is not there.
    """
    text = "0" if user is None else str(user)
    name, _, group = text.partition(":")
    for line in passwd_lines:
        fields = line.rstrip("\n").split(":")
        if len(fields) >= 6 and name in (fields[0], fields[2]):
            return Identity(int(fields[2]), int(group or fields[3]), fields[5] or "/")
    if name.isdecimal():
        return Identity(int(name), int(group or name))
    raise LookupError(f"user {text!r} is not in the sandbox's /etc/passwd")


def enter_user_namespace(descriptor: int | None) -> None:
    """Become root of the sandbox's user namespace; ``None`` when the process is in it already."""
    if descriptor is None:
        return
    os.setns(descriptor, os.CLONE_NEWUSER)
    os.close(descriptor)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def become(identity: Identity, *, single_user: bool) -> None:
    """Take on a user's IDs for good and give up everything that root there does not keep.

    :param single_user: only root is mapped (the host user is not root).
    :raises PermissionError: for another user than root when only root is mapped.
    """
    if single_user and (identity.uid, identity.gid) != (0, 0):
        raise PermissionError(
            f"user {identity.uid}:{identity.gid} cannot be used: sandboxes started by an "
            "unprivileged host user have root only; start the run as root, or drop the user"
        )
    cut_bounding_set()
    if not single_user:
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    set_capabilities(_KEPT_CAPABILITIES if identity.uid == 0 else ())
