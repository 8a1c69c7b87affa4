"""Where the files of a world's image are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Image:
    """A world image unpacked to a directory.

    The directory is laid over the sandbox's root. One that brings its own ``/bin/sh`` is a whole
    system: nothing of the host's system is then visible.
    """

    directory: Path

    @property
    def whole_system(self) -> bool:
        return any(os.path.lexists(self.directory / path) for path in ("bin/sh", "usr/bin/sh"))


def images_directory() -> Path:
    """``$APEX_IMAGES_DIR``, else ``~/.cache/skyrl-apex/images``."""
    configured = os.environ.get("APEX_IMAGES_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "skyrl-apex" / "images"


def installed_name(image: str) -> str:
    """Name of an image's directory under :func:`images_directory`."""
    return image.replace("/", "@").replace(":", "@")


def find_image(name: str, overrides: Mapping[str, str]) -> Image:
    """The directory of a named image: the ``images`` option first, then the images directory.

    :raises FileNotFoundError: naming both places when it is in neither.
    """
    directory = Path(overrides[name]) if name in overrides else None
    directory = directory or images_directory() / installed_name(name)
    if not directory.is_dir():
        raise FileNotFoundError(
            f"image {name!r} of the task is not unpacked on this machine: {directory} is no "
            f'directory. Unpack it there, or name its directory: images={{"{name}": DIR}} '
            "(environment option) or APEX_IMAGES_DIR"
        )
    return Image(directory.resolve())
