"""The page's server: this machine only, a secret in the address, small requests, one sentence for every refusal."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from lebm.core.errors import UserError
from lebm.show.explorer.lab import Lab
from lebm.show.templates import render

MAX_JSON, MAX_IMAGE = 64 << 10, 10 << 20
SHOWN = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".json": "application/json",
}
POLICY = (
    "default-src 'none'; img-src data: blob: 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Refused(Exception):
    """A request that is not answered, with the status that says why."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1; `address` is what a person opens."""

    daemon_threads = True

    def __init__(self, lab: Lab, port: int = 0) -> None:
        self.lab, self.token = lab, secrets.token_urlsafe(18)
        self.page = render("explorer/page.html").encode()
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as e:
            raise UserError(
                f"port {port} cannot be taken ({e.strerror}); choose another, or 0 for any free one"
            ) from None
        number = self.server_address[1]
        self.hosts = {f"127.0.0.1:{number}", f"localhost:{number}"}
        self.address = f"http://127.0.0.1:{number}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes the connection in the middle is nothing to report."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "lebm", ""
    timeout = 30  # a client that says nothing does not keep a thread

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, work: Callable[[str], tuple[str, bytes]]) -> None:
        """However the request ends, there is a status and a body, and the server goes on."""
        try:
            self._check()
            kind, body = work(urlsplit(self.path).path)
            self._send(200, kind, body)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Refused as e:
            self._error(e.status, str(e))
        except UserError as e:
            self._error(400, str(e))
        except Exception as e:
            self._error(500, f"this failed on the server ({type(e).__name__}); the page goes on working")

    def _check(self) -> None:
        """The Host must be ours (a foreign page may make its name point here), and whoever asks must know the token."""
        if self.headers.get("Host") not in self.server.hosts:
            raise Refused(
                403, "this server answers only under its own address; open the one that `lebm explore` printed"
            )
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc not in self.server.hosts:
            raise Refused(403, "requests from other pages are refused")
        given = self.headers.get("X-Token") or parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise Refused(403, "the token is missing or wrong; open the whole address that `lebm explore` printed")

    def _get(self, path: str) -> tuple[str, bytes]:
        if path == "/":
            return "text/html; charset=utf-8", self.server.page
        if path == "/api/info":
            return _json(self.server.lab.info())
        if path.startswith("/run/"):
            return _file(self.server.lab.subject.run.path, unquote(path.removeprefix("/run/")))
        raise Refused(404, f"there is nothing at {path[:80]}")

    def _post(self, path: str) -> tuple[str, bytes]:
        lab = self.server.lab
        if path == "/api/image":
            return _json(lab.image(self._body(MAX_IMAGE)))
        asks = {"/api/chain": lab.chain, "/api/move": lab.move}
        if path not in asks:
            raise Refused(404, f"there is nothing at {path[:80]}")
        try:
            asked = json.loads(self._body(MAX_JSON))
        except (ValueError, RecursionError):
            raise Refused(400, "the request is not JSON") from None
        if not isinstance(asked, dict):
            raise Refused(400, "the request must be a JSON object")
        return _json(asks[path](asked))

    def _body(self, most: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refused(411, "the request does not say how long it is")
        if len(length) > 12 or int(length) > most:
            self._drain(int(length[:12]))
            raise Refused(413, f"the upload is larger than {most / (1 << 20):g} MiB; send a smaller one")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refused(400, "the upload ended early; send it again")
        return body

    def _drain(self, length: int) -> None:
        """Read and forget some of what is too much, because a browser that still sends reads no answer; then close."""
        self.close_connection = True
        left = min(length, 4 * MAX_IMAGE)
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, words: str) -> None:
        try:
            self._send(status, *_json({"error": words}))
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the terminal belongs to the person."""


def _json(values: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(values).encode()


def _file(run: Path, name: str) -> tuple[str, bytes]:
    """A page or picture of the run folder; nothing outside it, whatever the name says or a link points to."""
    root = run.resolve()
    try:
        path = (root / name).resolve()
        inside = path.is_relative_to(root) and path.is_file()
    except (OSError, ValueError):
        inside = False
    if not inside or path.suffix not in SHOWN:
        raise Refused(404, "there is no such page or picture in the run folder")
    return SHOWN[path.suffix], path.read_bytes()
