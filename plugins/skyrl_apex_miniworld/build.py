"""Builds the sample world: its image and its train and held-out task directories."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from py_compile import PycInvalidationMode

from skyrl_apex_miniworld import __version__, gateway
from skyrl_apex_miniworld.company import Company, draw_company
from skyrl_apex_miniworld.gateway.documents import OFFICE_SUFFIXES, write_parsed
from skyrl_apex_miniworld.gateway.launch import BUNDLED_COMMAND
from skyrl_apex_miniworld.paperwork import write_company
from skyrl_apex_miniworld.tasks import ALLOWED_TOOLS, SERVERS, WorldTask, draw_tasks, write_task

DEFAULT_SEED = 0
TRAIN_COMPANIES, HELD_OUT_COMPANIES = 5, 2
TRAIN_PER_KIND, HELD_OUT_PER_KIND = 8, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build made."""

    image: str
    image_directory: Path
    installed: Path
    train: tuple[Path, ...]
    held_out: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Companies by world name, and the tasks about them."""

    companies: dict[str, Company]
    tasks: tuple[WorldTask, ...]


def draw_split(seed: int, *, held_out: bool) -> Split:
    """The companies and tasks of a split. Equal seeds give equal splits."""
    count, per_kind = (
        (HELD_OUT_COMPANIES, HELD_OUT_PER_KIND) if held_out else (TRAIN_COMPANIES, TRAIN_PER_KIND)
    )
    prefix = "heldout" if held_out else "train"
    companies = {
        f"{prefix}{number}": draw_company(f"{seed}/{prefix}/{number}", held_out=held_out)
        for number in range(1, count + 1)
    }
    tasks = [
        task
        for world, company in companies.items()
        for task in draw_tasks(company, world, per_kind=per_kind, seed=f"{seed}/{world}/tasks")
    ]
    return Split(companies, tuple(tasks))


def build(out: Path, *, seed: int = DEFAULT_SEED, images: Path | None = None) -> Built:
    """Write ``out/image``, ``out/train`` and ``out/heldout``; install the image below ``images``.

    ``images`` defaults to ``$APEX_IMAGES_DIR``, else ``~/.cache/skyrl-apex/images``. What stands
    in ``out`` under these names is replaced.
    """
    train, held_out = draw_split(seed, held_out=False), draw_split(seed, held_out=True)
    with tempfile.TemporaryDirectory(dir=_made(out), prefix=".build-") as scratch:
        image_directory = Path(scratch) / "image"
        _write_image(image_directory, [train, held_out])
        image = f"miniworld:{__version__}-{_digest(image_directory)}"
        installed = (images or images_directory()) / image.replace("/", "@").replace(":", "@")
        _install(shutil.copytree(image_directory, Path(scratch) / "installed"), installed)
        _replace(image_directory, out / "image")
        written = {}
        for name, split in (("train", train), ("heldout", held_out)):
            for task in split.tasks:
                write_task(task, image, Path(scratch) / name / task.slug)
            _replace(Path(scratch) / name, out / name)
            written[name] = tuple(sorted((out / name).iterdir()))
    return Built(
        image=image,
        image_directory=out / "image",
        installed=installed,
        train=written["train"],
        held_out=written["heldout"],
    )


def images_directory() -> Path:
    """Where sandboxes without a registry look for images."""
    given = os.environ.get("APEX_IMAGES_DIR")
    return Path(given) if given else Path.home() / ".cache/skyrl-apex/images"


def _write_image(image: Path, splits: Iterable[Split]) -> None:
    app = image / "app"
    index: dict[str, dict[str, object]] = {"tasks": {}, "worlds": {}}
    for split in splits:
        for world, company in split.companies.items():
            root = app / "worlds" / world
            write_company(company, root / "filesystem")
            write_parsed(str(root / "filesystem"), str(root / "parsed.json"))
            index["worlds"][world] = _world_servers()
        index["tasks"] |= {task.slug: task.world for task in split.tasks}
    (app / "world.json").write_text(json.dumps(index, separators=(",", ":")))
    (app / "tools").mkdir()
    start = app / "tools/start.sh"
    start.write_text((files("skyrl_apex_miniworld") / "task_files/start.sh").read_text())
    start.chmod(0o755)
    _write_server(app / "server")


def _world_servers() -> dict[str, object]:
    servers = {
        name: {"transport": "stdio", "command": BUNDLED_COMMAND, "args": [name]} for name in SERVERS
    }
    return {"servers": servers, "allowed_tool_names": list(ALLOWED_TOOLS)}


def _write_server(target: Path) -> None:
    """The gateway's own source, so that an image needs nothing but a Python.

    It is compiled here: sandboxes see images read-only and could not keep what they compile.
    """
    source = Path(str(gateway.__file__)).parent
    shutil.copytree(source, target / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "__main__.py").write_text("from gateway.__main__ import main\n\nmain()\n")
    compileall.compile_dir(
        target, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH, stripdir=str(target)
    )


def _digest(image: Path) -> str:
    """Names what an image holds. Of office documents only what is read from them counts: the
    files carry the time at which they were made."""
    digest = hashlib.sha256()
    for path in sorted(image.rglob("*")):
        if path.name == "parsed.json":
            content = sorted(map(repr, json.loads(path.read_bytes()).values()))
            digest.update("\n".join(content).encode())
        elif path.is_file() and path.suffix not in (".pyc", *OFFICE_SUFFIXES):
            digest.update(f"{path.relative_to(image)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _install(image: Path, target: Path) -> None:
    """Put an image into place, unless it is there already: its name says what it holds, and
    running sandboxes may stand on it."""
    if target.exists():
        return
    try:
        os.replace(image, _made(target.parent) / target.name)
    except OSError:
        if not target.exists():  # else another build was faster
            raise


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _replace(source: Path, target: Path) -> None:
    """Put the folder ``source`` in the place of ``target``."""
    if target.exists():
        shutil.rmtree(target)
    os.replace(source, target)
