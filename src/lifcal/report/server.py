"""A small web server for pages on this computer: loopback only, one token, no files, no network.

A page is a set of routes. `LoopbackServer` answers them on 127.0.0.1 at addresses that begin with a
random token, so that neither other computers nor other pages of the browser can use them:

    with LoopbackServer(port=0) as server:
        server.page("", lambda: "<!DOCTYPE html>...")
        server.get("state", lambda query: {"frame": query.get("frame", "")})
        server.post("add", lambda content: {"length": content["mm"]})
        state = server.stream("events")
        server.start()
        print(server.url)
        state.push({"views": 12})

Addresses in a page are relative ("state", "image?frame=3"), so no script has to know the token.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import logging
import os
import re
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from lifcal.errors import DataError, InputError, LifcalError

LOG = logging.getLogger("lifcal.server")

HOST = "127.0.0.1"
"""The one address that is listened on: no other computer reaches it."""
_NAMES = (HOST, "localhost")
"""Names by which a browser on this computer may call the server. Any other name in the header Host
means that a foreign page pretends to be this server (DNS rebinding)."""
_TOKEN_BYTES = 24
"""Random bytes in a token: 192 bits cannot be guessed."""
_MOST_BODY = 1 << 16
"""Longest body of a request, in bytes: what a page sends is a few numbers."""
_MOST_QUERY_FIELDS = 16
"""Largest number of fields in the query of an address."""
_MOST_CONNECTIONS = 64
"""Connections at a time. A browser opens six; the rest leaves room for more pages."""
_SLOW_S = 30.0
"""Seconds after which a client that sends nothing is left alone."""
_BEAT_S = 10.0
"""Seconds between two signs of life of a stream: a browser that is gone is noticed then."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""What a page may load: what stands in it, and what this server sends."""

Query: TypeAlias = Mapping[str, str]
Page: TypeAlias = Callable[[], str]
Getter: TypeAlias = Callable[[Query], Any]
Poster: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Reply:
    """Bytes to send, for what is not JSON.

    Parameters
    ----------
    content : bytes
    kind : str
        Media type, 'image/png' for instance.
    """

    content: bytes
    kind: str = "application/octet-stream"


class Channel:
    """The newest state of something, pushed to every page that listens.

    A page that connects gets the newest state at once, and each later one as it is pushed. A page
    that is slower than the states come skips those in between: states are whole, not differences.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._text = ""
        self._closed = False

    def push(self, state: Any) -> None:
        """Make a state the newest one.

        Parameters
        ----------
        state : dict, list, number, str or None
            What JSON can hold, without NaN.
        """
        text = json.dumps(state, separators=(",", ":"), allow_nan=False)
        with self._changed:
            self._text = text
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams of this channel."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def listen(self, beat_s: float = _BEAT_S) -> Iterator[str | None]:
        """Yield states as JSON, and None where nothing came for a while, until it is closed."""
        seen = 0
        while True:
            with self._changed:
                if self._version == seen and not self._closed:
                    self._changed.wait(beat_s)
                if self._closed:
                    return
                text = self._text if self._version != seen else None
                seen = self._version
            yield text


class LoopbackServer:
    """Routes that a browser on this computer can open, and nobody else.

    The server listens on 127.0.0.1 only. A request is refused if its address lacks the token, if
    its Host or Origin is not this server, or if its body is too long. Routes are names that are
    looked up in a table, and no address is ever a path of a file. A route that raises a
    `LifcalError` answers with status 400 and its message; any other exception is logged and
    answers with status 500. Requests run in threads of their own, so routes have to lock what they
    share.

    Parameters
    ----------
    port : int
        0 takes any free one.

    Raises
    ------
    DataError
        If the port is taken, or is not open to this user.
    """

    def __init__(self, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise InputError(f"port is {port}, needs 0 (any free one) to 65535")
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._pages: dict[str, Page] = {}
        self._getters: dict[str, Getter] = {}
        self._posters: dict[str, Poster] = {}
        self._channels: dict[str, Channel] = {}
        try:
            self._server = _Server(self)
        except OSError as error:  # no loopback device
            raise DataError(f"{HOST}: cannot listen: {error.strerror}") from error
        try:
            self._server.server_address = (HOST, port)
            self._server.server_bind()
            self._server.server_activate()
        except OSError as error:
            self._server.server_close()
            if error.errno == errno.EADDRINUSE:
                raise DataError(
                    f"port {port} of {HOST} is taken by another program: give another --port, or "
                    "leave it out to take a free one"
                ) from None
            raise DataError(f"port {port} of {HOST} cannot be used: {error.strerror}") from None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Address of the page "", with the token."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    # Routes

    def page(self, name: str, make: Page) -> None:
        """Answer GET with the HTML text that `make` returns."""
        self._pages[self._check_name(name)] = make

    def get(self, name: str, make: Getter) -> None:
        """Answer GET with what `make` returns of the query: a `Reply`, or what JSON can hold."""
        self._getters[self._check_name(name)] = make

    def post(self, name: str, take: Poster) -> None:
        """Give the JSON of a POST to `take`, and answer with what it returns, as JSON."""
        self._posters[self._check_name(name)] = take

    def stream(self, name: str) -> Channel:
        """Return a channel whose states an EventSource at this address gets."""
        channel = Channel()
        self._channels[self._check_name(name)] = channel
        return channel

    def _check_name(self, name: str) -> str:
        if not re.fullmatch(r"[a-z0-9-]*", name):
            raise InputError(f"route {name!r}: needs small letters, digits and '-'")
        if name in {*self._pages, *self._getters, *self._posters, *self._channels}:
            raise InputError(f"route {name!r} is there twice")
        return name

    # Running

    def start(self) -> None:
        """Answer requests from now on, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End all streams and stop listening."""
        for channel in self._channels.values():
            channel.close()
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()
        self._server.drop_connections()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """The listening socket; each connection is a thread."""

    daemon_threads = True
    block_on_close = False
    # On Windows the option would let a second program listen on a port that is taken.
    allow_reuse_address = os.name != "nt"

    def __init__(self, owner: LoopbackServer) -> None:
        self.owner = owner
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((HOST, 0), _Handler, bind_and_activate=False)

    def server_bind(self) -> None:
        """Bind without looking up the computer's name, which may wait for the network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, unless there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a connection."""
        with self._lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.discard(request)
            self._room.release()

    def drop_connections(self) -> None:
        """End connections that browsers keep open for later requests."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log what went wrong with a connection; a browser that went away is nothing."""
        LOG.debug("connection of %s ended", client_address, exc_info=True)


class _RefusedError(Exception):
    """A request that is not answered, with its status and reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "lifcal", ""
    timeout = _SLOW_S

    def do_GET(self) -> None:
        """Answer GET."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer POST."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep standard error clean."""
        LOG.debug(format, *args)

    def _answer(self, answer: Callable[[str, dict[str, str]], Reply | Channel]) -> None:
        try:
            found = answer(*self._check())
        except _RefusedError as refused:
            self.close_connection = True  # what follows may be the body of the refused request
            self._send(refused.status, _to_json({"error": str(refused)}))
        except LifcalError as error:
            self._send(HTTPStatus.BAD_REQUEST, _to_json({"error": " ".join(str(error).split())}))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception:
            LOG.exception("route failed")
            message = "the server failed; see the terminal"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _to_json({"error": message}))
        else:
            if isinstance(found, Channel):
                self._stream(found)
            else:
                self._send(HTTPStatus.OK, found)

    def _check(self) -> tuple[str, dict[str, str]]:
        """Return the route and the query of a request that may be answered."""
        owner = self.server.owner
        hosts = [f"{name}:{owner.port}" for name in _NAMES]
        given = self.headers.get_all("Host") or []
        if len(given) != 1 or given[0].lower() not in hosts:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "this server has another name")
        for origin in self.headers.get_all("Origin") or []:
            if origin.lower() not in [f"http://{host}" for host in hosts]:
                raise _RefusedError(HTTPStatus.FORBIDDEN, "pages of other servers are not answered")
        address = urlsplit(self.path)
        _, _, rest = address.path.partition("/")
        token, slash, name = rest.partition("/")
        # bytes, because text that is not ASCII cannot be compared in constant time
        right = hmac.compare_digest(unquote(token).encode(), owner.token.encode())
        if not right or not slash or address.netloc or address.scheme:
            raise _RefusedError(
                HTTPStatus.FORBIDDEN, "the token is missing: open the address that was printed"
            )
        site = self.headers.get("Sec-Fetch-Site", "none")
        if site not in ("none", "same-origin") and not self._opens_page(name):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "pages of other servers are not answered")
        try:
            query = dict(
                parse_qsl(address.query, keep_blank_values=True, max_num_fields=_MOST_QUERY_FIELDS)
            )
        except ValueError:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "too many fields") from None
        return name, query

    def _opens_page(self, name: str) -> bool:
        """Tell whether a browser is to show a page of this server in a window of its own.

        A file on this computer may ask for that: it holds the token and forwards a browser to it.
        """
        kind = (self.headers.get("Sec-Fetch-Mode"), self.headers.get("Sec-Fetch-Dest"))
        return (
            self.command == "GET"
            and name in self.server.owner._pages
            and kind == ("navigate", "document")
        )

    def _get(self, name: str, query: dict[str, str]) -> Reply | Channel:
        owner = self.server.owner
        if name in owner._pages:
            return Reply(owner._pages[name]().encode(), "text/html; charset=utf-8")
        if name in owner._getters:
            found = owner._getters[name](query)
            return found if isinstance(found, Reply) else _to_json(found)
        if name in owner._channels:
            return owner._channels[name]
        raise _RefusedError(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def _post(self, name: str, _query: dict[str, str]) -> Reply:
        take = self.server.owner._posters.get(name)
        if take is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # forms of other pages cannot send this type unasked
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "needs application/json")
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not re.fullmatch(r"[0-9]{1,9}", length):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "needs the length of its body")
        if int(length) > _MOST_BODY:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {_MOST_BODY} bytes"
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body is cut off")
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body is not valid JSON") from None
        return _to_json(take(content))

    def _send(self, status: HTTPStatus, reply: Reply) -> None:
        self._send_head(status, reply.kind, len(reply.content))
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.wfile.write(reply.content)

    def _send_head(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if self.close_connection or length is None:
            self.send_header("Connection", "close")
        for name, value in (
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", _POLICY),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),  # the address holds the token
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, channel: Channel) -> None:
        """Send states until the channel closes or the browser goes away."""
        self.close_connection = True
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._send_head(HTTPStatus.OK, "text/event-stream", None)
            self.wfile.write(b"retry: 1000\n\n")
            for text in channel.listen():
                self.wfile.write(b": alive\n\n" if text is None else f"data: {text}\n\n".encode())


def _to_json(content: Any) -> Reply:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Reply(text.encode(), "application/json")
