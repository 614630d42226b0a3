"""A receiver of webhooks on the loopback that answers as its test says and keeps what it got."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def submission_id(self) -> str:
        """Whose end it tells."""
        found: str = json.loads(self.body)["submission"]["submissionId"]
        return found


class Receiver(ThreadingHTTPServer):
    """The server.

    Paths decide: `/drip` sends one byte of a header at a time, `/endless` a body without end, `/hold` answers
    once `gate` is set, `/moved` redirects to `/`; anything else gets the next of `statuses`, then 200.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheme = "http" if tls is None else "https"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.statuses: list[int] = []
        self.requests: list[Request] = []
        self.gate = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        """Return the address of a path, under that name."""
        return f"{self.scheme}://{host}:{self.port}{path}"

    @property
    def only(self) -> Request:
        """The one request there was."""
        (request,) = self.requests
        return request

    def told(self) -> list[str]:
        """Return the ids of the submissions whose end was told, in order."""
        return [request.submission_id for request in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may hang up."""


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Serve until the block ends."""
    server = Receiver(tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.path, headers, body))
        match self.path:
            case "/drip":
                self._drip(b"HTTP/1.1 200 OK\r\nx: ")
            case "/endless":
                self._drip(b"HTTP/1.1 200 OK\r\n\r\n")
            case "/moved":
                self._answer(302, {"Location": self.server.url("/")})
            case "/hold":
                self.server.gate.wait(30)
                self._answer(200, {})
            case _:
                self._answer(self.server.statuses.pop(0) if self.server.statuses else 200, {})

    def _drip(self, opening: bytes) -> None:
        self.wfile.write(opening)
        while not self.server.gate.wait(0.05):
            self.wfile.write(b"x")

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()
