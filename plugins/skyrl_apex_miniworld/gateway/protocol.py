"""MCP over streamable HTTP, the part of it that a tool server needs, on the standard library.

Requests are answered with one JSON object, as the protocol allows; no event streams. What it
speaks is held to the official library's server by one conformance suite over both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .catalogue import Catalogue
from .tool import JsonObject

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions with an ``initialize`` handshake and sessions, newest first."""

SESSION_HEADER = "mcp-session-id"
_PARSE_ERROR, _INVALID_REQUEST, _NO_METHOD, _BAD_PARAMS = -32700, -32600, -32601, -32602


class Reply(NamedTuple):
    """An HTTP answer: status, JSON body (``None``: empty) and extra headers."""

    status: int
    body: JsonObject | None = None
    headers: tuple[tuple[str, str], ...] = ()


class RpcError(Exception):
    """A JSON-RPC error answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Endpoint:
    """The ``/mcp`` endpoint over one catalogue, with its sessions."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._sessions: set[str] = set()
        self._methods: dict[str, Callable[[JsonObject], JsonObject]] = {
            "initialize": _initialize,
            "ping": lambda _: {},
            "tools/list": lambda _: {"tools": catalogue.tools()},
            "tools/call": self._call,
        }

    def handle(self, method: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer one HTTP request. ``headers`` is looked up by lower-case names."""
        session = headers.get(SESSION_HEADER)
        if method == "DELETE":
            known = session in self._sessions
            self._sessions.discard(session or "")
            return Reply(200) if known else _unknown_session()
        if method != "POST":
            return Reply(405, _rpc_error(None, _INVALID_REQUEST, "Method Not Allowed"))
        if "application/json" not in headers.get("accept", "*/*").replace(
            "*/*", "application/json"
        ):
            text = "Not Acceptable: Client must accept application/json"
            return Reply(406, _rpc_error(None, _INVALID_REQUEST, text))
        try:
            message = json.loads(body)
        except ValueError as error:
            return Reply(400, _rpc_error(None, _PARSE_ERROR, f"Parse error: {error}"))
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return Reply(400, _rpc_error(None, _INVALID_REQUEST, "not a JSON-RPC 2.0 message"))
        return self._handle_message(message, session)

    def _handle_message(self, message: JsonObject, session: str | None) -> Reply:
        new_session: tuple[tuple[str, str], ...] = ()
        if message.get("method") == "initialize":
            session = os.urandom(16).hex()
            self._sessions.add(session)
            new_session = ((SESSION_HEADER, session),)
        elif session is None:
            text = "Bad Request: Missing session ID"
            return Reply(400, _rpc_error(message.get("id"), _INVALID_REQUEST, text))
        elif session not in self._sessions:
            return _unknown_session(message.get("id"))
        if "id" not in message or "method" not in message:
            return Reply(202)  # a notification, or an answer to a request we never send
        return Reply(200, self._answer(message), new_session)

    def _answer(self, message: JsonObject) -> JsonObject:
        method, params = message["method"], message.get("params") or {}
        try:
            if method not in self._methods:
                raise RpcError(_NO_METHOD, f"Method not found: {method}")
            result = self._methods[method](params)
        except RpcError as error:
            return _rpc_error(message["id"], error.code, str(error))
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _call(self, params: JsonObject) -> JsonObject:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise RpcError(_BAD_PARAMS, "tools/call needs a name and an object of arguments")
        return self._catalogue.call(name, arguments)


def _initialize(params: JsonObject) -> JsonObject:
    asked: Any = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "miniworld", "version": "1"},
    }


def _unknown_session(request_id: Any = None) -> Reply:
    return Reply(404, _rpc_error(request_id, _INVALID_REQUEST, "Session not found"))


def _rpc_error(request_id: Any, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
