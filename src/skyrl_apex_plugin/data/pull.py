"""Fetch shards from the HuggingFace hub, or take those that are here."""

from __future__ import annotations

from pathlib import Path

from skyrl_apex_plugin.data.shards import find_shards

SHARDS = "*.parquet"


def fetch_shards(source: str, *, revision: str | None, folder: Path) -> list[Path]:
    """Shards of a local file or directory, else of the hub's dataset repository ``source``.

    :param folder: where the hub's files go; whole ones are not fetched again.

    Raises ``ValueError`` naming the source when it is neither, and when it has no shards.
    """
    local = Path(source).expanduser()
    if local.exists():
        return find_shards(local)
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ValueError(
            f"{source}: no such file or directory, and a hub dataset is written OWNER/NAME"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        snapshot_download(
            source,
            repo_type="dataset",
            revision=revision,
            allow_patterns=[SHARDS],
            local_dir=folder,
        )
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(f"dataset {source!r} cannot be fetched from the hub: {error}") from error
    return find_shards(folder)
