"""What an agent did to a world's files: the difference of two snapshots."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import shlex
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from skyrl_apex_hookspecs import VerifierError

from .documents import LARGEST_FILE, document_text

BEFORE = "/var/lib/apex/initial_snapshot.tar.gz"
"""Where the agent packs the world's files before its first turn."""
PATHS = ("filesystem", ".apps_data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file that differs. ``text`` is its content now, or a diff for a modified file."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    text: str

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix.lower()


async def changes_in(environment: Any, *, before: str = BEFORE, longest: int) -> list[Change]:
    """Files that differ from the snapshot ``before``, sorted by path.

    :param environment: the live harbor environment of the trial.
    :param before: path of the first snapshot inside the sandbox.
    :param longest: characters of one file's text; the middle of longer ones is left out.

    Raises ``VerifierError`` when either snapshot cannot be had: without them a missing file
    cannot be told from a failed copy.
    """
    after = f"{before}.after.tar.gz"
    present = " ".join(f"$(test -e /{path} && echo {path})" for path in PATHS)
    old, new = shlex.quote(before), shlex.quote(after)
    # The empty list of names keeps tar from refusing when none of the folders is there.
    command = f"test -f {old} && tar -C / -czf {new} -T /dev/null {present}"
    result = await environment.exec(command=command, user="root")
    if result.return_code != 0:
        raise VerifierError(
            f"cannot compare with the snapshot {before} (exit code {result.return_code}): "
            f"{(result.stderr or result.stdout or 'it is not there')[-500:]}"
        )
    with tempfile.TemporaryDirectory(prefix="apex-snapshots-") as folder:
        local = Path(folder)
        await environment.download_file(source_path=before, target_path=local / "before.tar.gz")
        await environment.download_file(source_path=after, target_path=local / "after.tar.gz")
        return await asyncio.to_thread(
            compare, local / "before.tar.gz", local / "after.tar.gz", longest
        )


def compare(before: Path, after: Path, longest: int) -> list[Change]:
    """The difference of two snapshot archives. Holds the files that differ, not the others.

    Raises ``VerifierError`` naming the archive that is damaged.
    """
    old, new = _digests(before), _digests(after)
    differing = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    old_data, new_data = _contents(before, differing), _contents(after, differing)
    return [
        _change(path, old_data.get(path), new_data.get(path), longest) for path in sorted(differing)
    ]


def shorten(text: str, longest: int) -> str:
    """Head and tail of ``text`` with a remark between them, of about ``longest`` characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _change(path: str, old: bytes | None, new: bytes | None, longest: int) -> Change:
    if new is None:
        return Change(path=path, kind="deleted", text="")
    text = document_text(path, new)
    if old is None:
        return Change(path=path, kind="added", text=shorten(text, longest))
    lines = difflib.unified_diff(
        document_text(path, old).splitlines(), text.splitlines(), "before", "after", lineterm=""
    )
    shown = "\n".join(lines) or "[the text is the same; formatting or other data differs]"
    return Change(path=path, kind="modified", text=shorten(shown, longest))


def _digests(archive: Path) -> dict[str, bytes]:
    """Path to content digest of every regular file."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.isfile():
                    digest = hashlib.sha256()
                    file = tar.extractfile(member)
                    while file is not None and (piece := file.read(2**20)):
                        digest.update(piece)
                    found[_name(member)] = digest.digest()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise VerifierError(f"snapshot {archive.name} is damaged: {error}") from error
    return found


def _contents(archive: Path, wanted: set[str]) -> dict[str, bytes]:
    """Contents of the wanted files; one byte over the limit of what is shown, for large ones."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if member.isfile() and _name(member) in wanted:
                file = tar.extractfile(member)
                found[_name(member)] = file.read(LARGEST_FILE + 1) if file is not None else b""
    return found


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./")
