"""Writes a new plugin package from the ``.in`` files beside this module."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

FILES = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "init.py.in": "src/$module/__init__.py",
    "hooks.py.in": "src/$module/hooks.py",
    "grader.py.in": "src/$module/grader.py",
    "test_plugin.py.in": "tests/test_plugin.py",
}
"""Template file to the place it is written to, inside the new package's folder."""


def write_plugin_package(name: str, into: Path) -> Path:
    """Write the package ``name`` into the new folder ``into/name``.

    :raises ValueError: ``name`` cannot be the name of a distribution and of a module.
    :raises FileExistsError: the folder exists already.
    """
    module = re.sub(r"[-.]", "_", name).lower()
    if (
        not re.fullmatch(r"[a-zA-Z]([a-zA-Z0-9._-]*[a-zA-Z0-9])?", name)
        or not module.isidentifier()
    ):
        raise ValueError(
            f"{name!r} cannot name a package: use letters, digits and hyphens, and a letter first"
        )
    if keyword.iskeyword(module):
        raise ValueError(
            f"{name!r} cannot name a package: {module!r} is a word of Python's own, which nothing "
            "can import"
        )
    folder = into / name
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another name or folder")
    words = {"name": name, "module": module, "term": module, "Class": _class_name(module)}
    for source, target in FILES.items():
        template = Template((files(__package__) / source).read_text(encoding="utf-8"))
        path = folder / Template(target).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.substitute(words), encoding="utf-8")
    return folder


def _class_name(module: str) -> str:
    return "".join(part.capitalize() for part in module.split("_")) + "Grader"
