"""The gateway on the standard library alone, for a start that costs next to nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from urllib.parse import parse_qs, urlsplit

from .archive import Subsystems, snapshot, snapshot_name
from .catalogue import Catalogue
from .protocol import Endpoint
from .surface import Surface
from .tool import JsonObject
from .world import World

_ROUTES = {
    "/health": "GET",
    "/apps": "POST",
    "/data/populate": "POST",
    "/data/snapshot": "POST",
}


class LightGateway(ThreadingTCPServer):
    """HTTP server that holds the gateway's state; a thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], world: World, subsystems: Subsystems, retry_seconds: float
    ) -> None:
        super().__init__(address, _Handler)
        self.endpoint: Endpoint | None = None
        self.surface = Surface(world, subsystems, self._serve, retry_seconds)

    def _serve(self, catalogue: Catalogue) -> None:
        self.endpoint = Endpoint(catalogue)


class _Handler(BaseHTTPRequestHandler):
    server: LightGateway
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet for head and body

    def _handle(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        if url.path in ("/mcp", "/mcp/"):
            self._mcp(body)
        elif url.path not in _ROUTES:
            self._json(404, {"detail": "Not Found"})
        elif self.command != _ROUTES[url.path]:
            self._json(405, {"detail": "Method Not Allowed"})
        elif url.path == "/health":
            self._send(200, b"OK", "text/plain; charset=utf-8")
        elif url.path == "/apps":
            self._json(*self.server.surface.apps(body))
        elif url.path == "/data/populate":
            subsystem = parse_qs(url.query).get("subsystem", ["filesystem"])[0]
            content_type = self.headers.get("content-type", "")
            self._json(*self.server.surface.populate(subsystem, content_type, body))
        else:
            self._snapshot()

    do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = do_PATCH = _handle

    def _mcp(self, body: bytes) -> None:
        if self.server.endpoint is None:
            self._json(404, {"detail": "Not Found"})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.endpoint.handle(self.command, headers, body)
        if reply.body is None:
            self._send(reply.status, b"", None, reply.headers)
        else:
            self._json(reply.status, reply.body, reply.headers)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _json(self, status: int, body: JsonObject, headers: Iterable[tuple[str, str]] = ()) -> None:
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        self._send(status, data, "application/json", headers)

    def _send(
        self,
        status: int,
        data: bytes,
        content_type: str | None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.send_response_only(status)
        if content_type is not None:
            self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _snapshot(self) -> None:
        self.send_response_only(200)
        self.send_header("content-type", "application/gzip")
        self.send_header("content-disposition", f'attachment; filename="{snapshot_name()}"')
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in snapshot(self.server.surface.subsystems):
            if piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
