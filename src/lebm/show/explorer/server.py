"""The page's server: this machine only, a secret in the address, small requests, one sentence for every refusal."""

from __future__ import annotations

import hmac
import json
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lebm.core.errors import UserError
from lebm.show.explorer.lab import Lab
from lebm.show.templates import render

MAX_JSON, MAX_IMAGE = 64 << 10, 10 << 20
HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; img-src data: blob: 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": POLICY,
}


class Refused(Exception):
    """A request that is not answered: the status that says why, and a sentence."""


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
        """A browser that closes the connection in the middle, or says nothing for too long, is nothing to report."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "lebm", ""
    timeout = 30  # a client that says nothing does not keep a thread

    def do_GET(self) -> None:
        """However the request ends, there is a status and a body, and the server goes on."""
        try:
            self._check()
            answer = 200, *self._content()
        except Refused as e:
            answer = e.args[0], *_json({"error": e.args[1]})
        except UserError as e:
            answer = 400, *_json({"error": str(e)})
        except Exception as e:
            words = f"this failed on the server ({type(e).__name__}); the page goes on working"
            answer = 500, *_json({"error": words})
        self._send(*answer)

    do_POST = do_GET

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

    def _content(self) -> tuple[str, bytes]:
        lab, path = self.server.lab, urlsplit(self.path).path
        match self.command, path:
            case "GET", "/":
                return HTML, self.server.page
            case "GET", "/api/info":
                return _json(lab.info())
            case "GET", "/run/report.html" if lab.report.is_file():
                return HTML, lab.report.read_bytes()
            case "POST", "/api/image":
                return _json(lab.image(self._body(MAX_IMAGE)))
            case "POST", "/api/chain":
                return _json(lab.chain(self._values()))
            case "POST", "/api/move":
                return _json(lab.move(self._values()))
        raise Refused(404, f"there is no such page: {path[:80]}")

    def _values(self) -> dict[str, Any]:
        try:
            values = json.loads(self._body(MAX_JSON))
        except (ValueError, RecursionError):
            raise Refused(400, "the request is not JSON") from None
        if not isinstance(values, dict):
            raise Refused(400, "the request must be a JSON object")
        return values

    def _body(self, most: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refused(411, "the request does not say how long it is")
        if len(length) > 12 or int(length) > most:
            left = min(int(length[:12]), 4 * MAX_IMAGE)  # a browser that still sends reads no answer
            while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
                left -= len(piece)
            raise Refused(413, f"the upload is larger than {most / (1 << 20):g} MiB; send a smaller one")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refused(400, "the upload ended early; send it again")
        return body

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in GUARDS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the terminal belongs to the person."""


def _json(values: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(values).encode()
