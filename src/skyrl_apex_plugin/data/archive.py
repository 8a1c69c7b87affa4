"""One task's archive (gzip tar) and its directory."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from skyrl_apex_plugin.data.limits import Limits, Refused, check_link, member_path, refusing

PIECE = 2**20
IN_MEMORY = 32 * 2**20
"""Unpacked bytes that are held in memory; larger archives go through a temporary file."""
MALFORMED = (
    tarfile.TarError,
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    ValueError,
)
"""What ``tarfile`` raises for headers with numbers that are none, absurd sizes and long chains."""


def unpack(data: bytes, target: Path, limits: Limits) -> None:
    """Write an archive's files and directories into the new directory ``target``.

    Of permissions only the executable bit is kept; owners and times are not.

    Raises ``Refused`` for what is no gzip tar or an empty one, for members that are neither file,
    directory nor a link within the task, and beyond ``limits``.
    """
    target.mkdir(parents=True)
    with _decompressed(data, limits) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                _Writer(target).write(archive)
        except MALFORMED as error:
            reason = str(error) or type(error).__name__
            raise Refused(f"not a whole tar archive: {reason}") from error


def pack(directory: Path) -> bytes:
    """The archive of a task directory. Equal directories give equal bytes on every machine with
    the same zlib: names are sorted, owners and times are zero.

    Raises ``ValueError`` for what no extraction would take: devices, links out of the task.
    """
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in _entries(directory):
            info = archive.gettarinfo(path, arcname=path.relative_to(directory).as_posix())
            if info.islnk():  # a further name of a file: packed as a file of its own
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            if not (info.isfile() or info.isdir() or info.issym()):
                raise ValueError(f"{path}: only files, directories and links can be packed")
            if info.issym():
                try:
                    check_link(info.name, info.linkname)
                except Refused as reason:
                    raise ValueError(f"{directory}: {reason}") from reason
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            if info.isfile():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return buffer.getvalue()


def _entries(directory: Path) -> Iterator[Path]:
    for child in sorted(directory.iterdir(), key=lambda path: path.name.encode()):
        yield child
        if child.is_dir() and not child.is_symlink():
            yield from _entries(child)


@contextmanager
def _decompressed(data: bytes, limits: Limits) -> Iterator[IO[bytes]]:
    """The tar behind the gzip, as a file; on disk when it is large."""
    allowed = limits.unpacked(len(data))
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as stream:
        try:
            for piece in _inflate(data):
                stream.write(piece)
                if stream.tell() > allowed:
                    raise Refused(
                        f"unpacks to over {allowed} bytes from {len(data)}: a decompression bomb, "
                        "unless a higher --unpack-ratio says otherwise"
                    )
        except zlib.error as error:
            raise Refused(f"not gzip: {error}") from error
        stream.seek(0)
        yield stream


def _inflate(data: bytes) -> Iterator[bytes]:
    """Decompressed pieces of at most ``PIECE`` bytes, over all members of a gzip file."""
    rest = data
    while rest.strip(b"\0"):
        inflater = zlib.decompressobj(wbits=31)
        while not inflater.eof:
            piece = inflater.decompress(rest, PIECE)
            rest = inflater.unconsumed_tail
            if not piece and not rest and not inflater.eof:
                raise zlib.error("the data is cut off")
            yield piece
        rest = inflater.unused_data


class _Writer:
    """Writes members below a directory and never through a link."""

    def __init__(self, target: Path) -> None:
        self._root = str(target)
        self._folders = {""}

    def write(self, archive: tarfile.TarFile) -> None:
        count = 0
        for member in archive:
            count += 1
            name = member_path(member.name)
            if member.isdir():
                self._make_folder(name)
            elif member.isreg() and not member.issparse():
                self._write_file(archive, member, name)
            elif member.issym():
                self._make_link(member, name)
            else:
                raise Refused(f"member {member.name!r} is no file, directory or symbolic link")
        if not count:
            raise Refused("the archive is empty")

    def _write_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        self._make_folder(name.rpartition("/")[0])
        mode = 0o755 if member.mode & 0o100 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with refusing(f"member {member.name!r}"):
            descriptor = os.open(f"{self._root}/{name}", flags, mode)
        try:
            self._copy(archive, member, descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def _copy(archive: tarfile.TarFile, member: tarfile.TarInfo, descriptor: int) -> None:
        source = archive.fileobj
        assert source is not None
        source.seek(member.offset_data)
        left = member.size
        while left:
            piece = source.read(min(left, PIECE))
            if not piece:
                raise Refused(f"member {member.name!r} is cut off")
            left -= len(piece)
            while piece:
                piece = piece[os.write(descriptor, piece) :]

    def _make_link(self, member: tarfile.TarInfo, name: str) -> None:
        check_link(name, member.linkname)
        self._make_folder(name.rpartition("/")[0])
        with refusing(f"member {member.name!r}"):
            os.symlink(member.linkname, f"{self._root}/{name}")

    def _make_folder(self, name: str) -> None:
        """Make a directory and its parents. A link in its place is refused by ``mkdir``."""
        if name in self._folders:
            return
        self._make_folder(name.rpartition("/")[0])
        with refusing(f"directory {name!r}"):
            os.mkdir(f"{self._root}/{name}")
        self._folders.add(name)
