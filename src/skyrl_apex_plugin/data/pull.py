"""Fetch shards from the HuggingFace hub, or take those that are here."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

from skyrl_apex_plugin.data.shards import find_shards
from skyrl_apex_plugin.files import write_atomic

SHARDS = "*.parquet"
RECORD = "pulled.json"
"""Beside the hub's files: dataset to the shards that were fetched of it."""


def fetch_shards(source: str, *, revision: str | None, folder: Path) -> list[Path]:
    """Shards of a local file or directory, else of the hub's dataset repository ``source``.

    :param folder: where the hub's files go; whole ones are not fetched again, and those of an
        earlier pull that the revision no longer has are removed.

    Raises ``ValueError`` naming the source when it is neither, and when it has no shards.
    """
    local = Path(source).expanduser()
    if local.exists():
        return find_shards(local)
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ValueError(
            f"{source}: no such file or directory, and a hub dataset is written OWNER/NAME"
        )
    pulled = _pulled(folder)
    names = _download(source, revision, folder)
    others = {name for key, shards in pulled.items() if key != source for name in shards}
    for name in set(pulled.get(source, ())) - set(names) - others:
        (folder / name).unlink(missing_ok=True)
    write_atomic(folder / RECORD, json.dumps({**pulled, source: names}, indent=1))
    return [folder / name for name in names]


def _download(source: str, revision: str | None, folder: Path) -> list[str]:
    """Fetch what is not there yet; returns the names of all shards of the revision, sorted."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        info = HfApi().dataset_info(source, revision=revision)
        files = [each.rfilename for each in info.siblings or ()]
        names = sorted(name for name in files if fnmatch(name, SHARDS))
        if not names:
            raise ValueError(f"dataset {source!r} has no parquet shard ({SHARDS}) at {info.sha}")
        # By its commit: what a branch points to may change between the two requests.
        snapshot_download(
            source,
            repo_type="dataset",
            revision=info.sha,
            allow_patterns=[SHARDS],
            local_dir=folder,
        )
    except (HTTPError, HFValidationError, OSError) as error:
        raise ValueError(f"dataset {source!r} cannot be fetched from the hub: {error}") from error
    return names


def _pulled(folder: Path) -> dict[str, list[str]]:
    """What earlier pulls fetched."""
    path = folder / RECORD
    try:
        pulled: dict[str, list[str]] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}; remove it and pull again") from error
    return pulled
