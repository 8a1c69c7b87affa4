"""MCP over the gateway: sessions, names, tool styles and the shapes of failures."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
GONE = (400, 404)
"""Answers to a session that does not exist (any more): 404, from older servers 400."""
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


def message(answer: httpx.Response) -> dict[str, Any]:
    """The JSON-RPC message of an answer, sent as JSON or as an event stream."""
    if answer.headers["content-type"].startswith("application/json"):
        return dict(answer.json())
    data = [line for line in answer.text.splitlines() if line.startswith("data:")]
    return dict(json.loads(data[-1].removeprefix("data:")))


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_sessions_are_named_in_a_header(gateway: Any, path: str) -> None:
    if gateway.files is not None:
        gateway.serve("files")
    with httpx.Client(base_url=gateway.url, headers=ACCEPT, follow_redirects=True) as client:
        opened = client.post(path, json=INITIALIZE)
        assert opened.status_code == 200
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        assert "serverInfo" in message(opened)["result"]
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert client.post(path, json=ready, headers=session).status_code == 202
        listed = client.post(path, json=LIST, headers=session)
        assert message(listed)["result"]["tools"]
        assert client.post(path, json=LIST).status_code == 400
        assert client.post(path, json=LIST, headers={"mcp-session-id": "0"}).status_code in GONE
        assert client.delete(path, headers=session).status_code == 200
        assert client.post(path, json=LIST, headers=session).status_code in GONE


def test_a_swap_ends_sessions(sample: Any) -> None:
    sample.serve("files")
    with httpx.Client(base_url=sample.url, headers=ACCEPT) as client:
        opened = client.post("/mcp/", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        sample.serve("sheets")
        assert client.post("/mcp/", json=LIST, headers=session).status_code in GONE


def test_one_server_shows_bare_names(sample: Any) -> None:
    sample.serve("files")
    assert sample.names() == ["list_files", "read_file", "search_files"]


def test_several_servers_show_prefixed_names(sample: Any) -> None:
    sample.serve("files", "sheets")
    names = sample.names()
    assert "files_read_file" in names
    assert all(name.startswith(("files_", "sheets_")) for name in names)


@pytest.mark.parametrize(
    ("allowed", "shown"),
    [
        (["read_file"], ["files_read_file"]),
        (["files_read_file"], ["files_read_file"]),
        (["spreadsheet"], ["sheets_spreadsheet"]),
        (["file"], ["files_read_file"]),
        (["ead_file"], []),
        ([], []),
    ],
)
def test_the_allow_list_matches_names_and_suffixes(
    sample: Any, allowed: list[str], shown: list[str]
) -> None:
    sample.serve("files", "sheets", allowed=allowed)
    assert sample.names() == shown


def test_a_disallowed_tool_is_an_error_result(sample: Any) -> None:
    sample.serve("files", "sheets", allowed=["spreadsheet"])
    sample.write("secret.txt", "hidden")
    result = sample.call("files_read_file", {"path": "/secret.txt"})
    assert result["isError"] is True
    assert "hidden" not in json.dumps(result)


def test_an_unknown_tool_is_an_error_result(gateway: Any) -> None:
    if gateway.files is not None:
        gateway.serve("files")
    assert gateway.call("no_such_tool", {})["isError"] is True


@pytest.mark.parametrize("app", ["sheets", "mail"])
def test_meta_tools_take_one_required_object(sample: Any, app: str) -> None:
    sample.serve(app)
    tool, schema_tool = sample.names()
    assert schema_tool == f"{tool}_schema"
    schema = sample.tool(tool)["inputSchema"]
    assert schema["required"] == ["request"]
    assert set(schema["properties"]) == {"request"}
    assert "action" in schema["properties"]["request"]["properties"]
    assert "$ref" not in json.dumps(schema)
    shown = sample.call(schema_tool, {})["content"][0]["text"]
    assert json.loads(shown) == schema


def test_file_tools_are_flat_and_read_only(sample: Any) -> None:
    sample.serve("files")
    for name in sample.names():
        tool = sample.tool(name)
        assert "request" not in tool["inputSchema"]["properties"]
        assert tool["annotations"]["readOnlyHint"] is True


def test_code_runs_in_the_file_system(sample: Any) -> None:
    sample.serve("shell")
    sample.write("Sales/a.csv", "x\ny\n")
    result = sample.call("code_exec", {"request": {"code": "pwd; wc -l < Sales/a.csv"}})
    answer = json.loads(result["content"][0]["text"])
    assert answer["output"].split() == [str(sample.files), "2"]
    assert sample.tool("code_exec")["annotations"]["readOnlyHint"] is False


def test_unused_fields_are_null(sample: Any) -> None:
    sample.serve("sheets")
    sample.write("Finance/a.csv", "Client,Jan,Unit\nAcme,42,k\n")
    request = {
        "action": "lookup",
        "file_path": "/Finance/a.csv",
        "row": "Acme",
        "column": "Jan",
    }
    result = sample.call("spreadsheet", {"request": request})
    expected = {"tabs": None, "rows": None, "value": "42", "unit": "k"}
    assert json.loads(result["content"][0]["text"]) == expected


def test_an_application_failure_comes_as_success(sample: Any) -> None:
    sample.serve("sheets")
    request = {"action": "list_tabs", "file_path": "/no/such.xlsx"}
    result = sample.call("spreadsheet", {"request": request})
    assert result["isError"] is False
    assert set(json.loads(result["content"][0]["text"])) == {"error"}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"action": "list_tabs", "file_path": "/a.csv"},
        {"request": "text"},
        {"request": {"action": "list_tabs"}},
        {"request": {"action": "paint", "file_path": "/a.csv"}},
        {"request": {"action": "read_tab", "file_path": "/a.csv", "tab_index": "first"}},
    ],
)
def test_an_argument_error_is_an_error_result(sample: Any, arguments: dict[str, Any]) -> None:
    sample.serve("sheets")
    result = sample.call("spreadsheet", arguments)
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Internal error: Validation error: ")


def test_paths_cannot_leave_the_world(sample: Any) -> None:
    sample.serve("files")
    result = sample.call("read_file", {"path": "/../../../../etc/passwd"})
    assert "root:" not in json.dumps(result)


def test_images_come_without_text(sample: Any) -> None:
    sample.serve("files")
    sample.write("logo.png", b"\x89PNG\r\n\x1a\nrest")
    (content,) = sample.call("read_file", {"path": "/logo.png"})["content"]
    assert (content["type"], content["mimeType"]) == ("image", "image/png")


def test_a_large_text_comes_whole(sample: Any) -> None:
    sample.serve("files")
    text = "0123456789" * 40_000
    sample.write("large.txt", text)
    assert sample.call("read_file", {"path": "/large.txt"})["content"][0]["text"] == text


def test_a_server_may_break_its_own_output_schema(sample: Any) -> None:
    sample.serve("slides")
    sample.write("a.deck", json.dumps({"slides": [{"title": "T", "text": "t"}]}))
    schema = sample.tool("read_slide")["outputSchema"]
    assert schema["properties"]["notes"] == {"type": "string", "nullable": True}
    arguments = {"input": {"path": "/a.deck", "number": 1}}
    with httpx.Client(base_url=sample.url, headers=ACCEPT) as client:
        opened = client.post("/mcp/", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        client.post("/mcp/", json=ready, headers=session)
        call = {"name": "read_slide", "arguments": arguments}
        request = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}
        result = message(client.post("/mcp/", json=request, headers=session))["result"]
    assert result["structuredContent"]["notes"] is None
    with pytest.raises(Exception) as caught:
        sample.call("read_slide", arguments)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert "None is not of type 'string'" in str(error)
