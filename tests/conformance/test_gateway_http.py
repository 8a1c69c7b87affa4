"""The gateway's HTTP surface: health, populate, snapshot, apps."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest

STDIO_SERVER = textwrap.dedent(
    """
    try:
        from mcp.server.mcpserver import MCPServer as Server
    except ImportError:
        from mcp.server.fastmcp import FastMCP as Server
    server = Server("demo")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    server.run()
    """
)


def test_health_is_ok(gateway: Any) -> None:
    answer = httpx.get(f"{gateway.url}/health")
    assert (answer.status_code, answer.text) == (200, "OK")


def test_unknown_paths_are_404(gateway: Any) -> None:
    assert httpx.get(f"{gateway.url}/no/such/path").status_code == 404


def test_mcp_is_404_before_the_first_apps(fresh: Any) -> None:
    assert fresh.post("/mcp/", json={}).status_code == 404
    assert fresh.serve("files").status_code == 200
    assert "read_file" in fresh.names()


@pytest.mark.parametrize("subsystem", ["filesystem", ".apps_data", "filesystem/Finance/2025"])
def test_populate_unpacks_below_the_subsystem(sample: Any, pack: Any, subsystem: str) -> None:
    data = {"a.txt": b"one", "sub/b.txt": b"three"}
    answer = sample.populate(subsystem, pack(data))
    assert answer.status_code == 200
    body = answer.json()
    assert set(body) == {"objects_added", "subsystem", "extracted_bytes", "hook_timings"}
    assert body["objects_added"] == 2
    assert body["subsystem"] == subsystem
    assert body["extracted_bytes"] == len(b"one") + len(b"three")
    assert isinstance(body["hook_timings"], dict)
    names = snapshot(sample)
    assert {f"{subsystem}/a.txt", f"{subsystem}/sub/b.txt"} <= set(names)


def test_populated_bytes_are_untouched(sample: Any, pack: Any) -> None:
    data = bytes(range(256)) * 300 + b"\r\n--\r\n\n"
    sample.populate("filesystem", pack({"raw.bin": data}))
    assert snapshot(sample)["filesystem/raw.bin"] == data


@pytest.mark.parametrize("subsystem", ["nowhere", "filesystem/../..", "/etc", ""])
def test_populate_refuses_a_bad_subsystem(gateway: Any, pack: Any, subsystem: str) -> None:
    assert gateway.populate(subsystem or "none", pack({"a": b"b"})).status_code == 400


def test_populate_without_a_file_is_422(gateway: Any) -> None:
    assert gateway.populate("filesystem", None).status_code == 422


def test_populate_with_something_else_than_gzip_is_500(gateway: Any) -> None:
    assert gateway.populate("filesystem", b"not an archive").status_code == 500


def test_populate_keeps_archives_inside_of_the_subsystem(sample: Any, pack: Any) -> None:
    answer = sample.populate("filesystem", pack({"../escaped.txt": b"x"}))
    assert answer.status_code == 500
    assert not (sample.files.parent / "escaped.txt").exists()


def test_snapshot_is_a_chunked_gzip_of_files(sample: Any, pack: Any) -> None:
    sample.populate("filesystem", pack({"deep/er/x.txt": b"x"}))
    sample.populate(".apps_data", pack({"state.json": b"{}"}))
    with httpx.stream("POST", f"{sample.url}/data/snapshot") as answer:
        data = answer.read()
    assert answer.headers["content-type"] == "application/gzip"
    assert answer.headers["transfer-encoding"] == "chunked"
    name = r'filename="?snap_[0-9a-f]+\.tar\.gz"?'
    assert re.search(name, answer.headers["content-disposition"])
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        members = tar.getmembers()
    assert all(member.isfile() for member in members)
    roots = {member.name.partition("/")[0] for member in members}
    assert roots == {"filesystem", ".apps_data"}


def test_apps_answers_the_servers_and_the_time(sample: Any) -> None:
    answer = sample.serve("files", "sheets")
    assert answer.status_code == 200
    body = answer.json()
    assert body["servers"] == ["files", "sheets"]
    assert body["duration_ms"] >= 0


def test_apps_can_only_be_posted(gateway: Any) -> None:
    assert httpx.get(f"{gateway.url}/apps").status_code == 405


@pytest.mark.parametrize(
    "body", [{"mcpServers": {"a": {"command": "x", "args": []}}}, {"servers": {}}, [], "text"]
)
def test_apps_without_a_transport_is_422(gateway: Any, body: object) -> None:
    answer = gateway.post("/apps", json=body)
    assert answer.status_code == 422
    assert "detail" in answer.json()


def test_apps_swaps_the_servers(sample: Any) -> None:
    sample.serve("files")
    assert "read_file" in sample.names()
    sample.serve("sheets")
    assert sample.names() == ["spreadsheet", "spreadsheet_schema"]


def test_a_failed_server_is_named_and_the_healthy_ones_stay_up(sample: Any) -> None:
    body = {
        "mcpServers": {
            "files": {"transport": "stdio", "command": "miniworld-app", "args": ["files"]},
            "broken": {"transport": "stdio", "command": "/no/such/program", "args": []},
        }
    }
    answer = sample.post("/apps", json=body)
    assert answer.status_code == 503
    detail = answer.json()["detail"]
    assert detail["failed_servers"] == ["broken"]
    assert "broken" in detail["error"]
    broken = detail["details"]["broken"]
    assert broken["attempts"] >= 2
    assert "/no/such/program" in broken["error"]
    assert "files_read_file" in sample.names() or "read_file" in sample.names()


def test_plain_stdio_servers_are_served_too(sample: Any, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(STDIO_SERVER)
    plain = {"transport": "stdio", "command": sys.executable, "args": [str(script)]}
    bundled = {"transport": "stdio", "command": "miniworld-app", "args": ["files"]}
    answer = sample.post("/apps", json={"mcpServers": {"demo": plain, "files": bundled}})
    assert answer.status_code == 200, answer.text
    assert "demo_add" in sample.names()
    result = sample.call("demo_add", {"a": 2, "b": 3})
    assert (result["content"][0]["text"], result["isError"]) == ("5", False)
    assert sample.call("demo_add", {"a": "two"})["isError"] is True
    assert sample.serve("files").status_code == 200  # ends the child process


def snapshot(gateway: Any) -> dict[str, bytes]:
    """Names and contents of a snapshot's members."""
    answer = gateway.post("/data/snapshot")
    assert answer.status_code == 200
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
