"""The loopback server: what it answers, and above all what it refuses."""

import http.client
import json
import socket
import threading

import pytest

from lifcal.errors import DataError, InputError
from lifcal.report import server as module
from lifcal.report.server import LoopbackServer, Reply


@pytest.fixture(scope="module")
def server():
    with LoopbackServer() as server:
        server.page("", lambda: "<p>ö</p>")
        server.get("state", dict)
        server.get("image", lambda _: Reply(b"\x89PNG", "image/png"))
        server.post("add", lambda content: {"sum": sum(content)})

        def fail(_content):
            raise DataError("no such\nframe")

        server.post("wrong", fail)
        server.get("bug", lambda _: 1 / 0)
        server.start()
        yield server


def ask(server, name="", method="GET", body=None, token=None, host=None, **headers):
    """Send one request; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    token = server.token if token is None else token
    head = {"Host": host or f"127.0.0.1:{server.port}"}
    head |= {key.replace("_", "-"): value for key, value in headers.items()}
    try:
        connection.request(method, f"/{token}/{name}", body, head)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def post(server, name, content, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"Content_Type": "application/json", **headers}
    status, _, said = ask(server, name, "POST", body, **headers)
    return status, json.loads(said)


def test_routes(server):
    status, headers, body = ask(server)
    assert (status, body.decode()) == (200, "<p>ö</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    status, headers, body = ask(server, "state?frame=a%26b&x=")
    assert json.loads(body) == {"frame": "a&b", "x": ""}
    status, headers, body = ask(server, "image")
    assert (status, headers["Content-Type"], body) == (200, "image/png", b"\x89PNG")
    assert post(server, "add", [1, 2, 3]) == (200, {"sum": 6})
    assert post(server, "add", [1], Origin=f"http://localhost:{server.port}") == (200, {"sum": 1})


def test_pages_may_load_nothing_from_elsewhere(server):
    for name in ("", "state", "image"):
        headers = ask(server, name)[1]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "http" not in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


def test_only_this_computer(server):
    assert server._server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/{server.token}/"
    others = {
        entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    }
    for address in others - {"127.0.0.1"}:
        with (
            pytest.raises(OSError, match=r".*"),
            socket.create_connection((address, server.port), timeout=1),
        ):
            pass


@pytest.mark.parametrize("token", ["", "x", "%c3%b6", "%00", "..", "../state", "%2e%2e"])
def test_without_the_token(server, token):
    for method in ("GET", "POST"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.putrequest(method, f"/{token}/state")
        connection.endheaders()
        assert connection.getresponse().status == 403
        connection.close()


def test_tokens(server):
    for token in (server.token[:-1], server.token + "a", server.token.swapcase()):
        assert ask(server, token=token)[0] == 403
    with LoopbackServer() as other:
        assert other.token != server.token
        assert len(other.token) >= 32


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_hosts_and_pages(server, headers):
    assert ask(server, "state", **headers)[0] == 403
    assert post(server, "add", [1], **headers)[0] == 403


def test_a_file_may_forward_a_browser_to_a_page(server):
    """Browsers call that a request of another site; nothing but showing a page is allowed to it."""
    window = {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "navigate",
        "Sec_Fetch_Dest": "document",
    }
    assert ask(server, **window)[0] == 200
    assert ask(server, token="wrong", **window)[0] == 403
    assert ask(server, "state", **window)[0] == 403
    assert post(server, "add", [1], **window)[0] == 403
    assert ask(server, **{**window, "Sec_Fetch_Dest": "iframe"})[0] == 403
    assert ask(server, **{**window, "Sec_Fetch_Mode": "no-cors"})[0] == 403


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..%2f..%2fetc/passwd", "state/", "/etc/passwd", "nothing", "%00"]
)
def test_no_path_is_a_file(server, name):
    assert ask(server, name)[0] == 404


def test_bodies(server, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BODY", 40)
    assert post(server, "add", b"[" + b"1," * 18 + b"1]") == (200, {"sum": 19})
    assert post(server, "add", b"[" + b"1," * 20 + b"1]")[0] == 413
    assert post(server, "add", b"[1")[0] == 400
    assert post(server, "add", b"\xff")[0] == 400
    assert post(server, "add", [1], Content_Type="text/plain")[0] == 415
    assert post(server, "add", [1], Transfer_Encoding="chunked")[0] == 411
    assert post(server, "add", [1], Content_Length="-1")[0] == 411
    assert post(server, "state", [1])[0] == 404
    assert ask(server, "add")[0] == 404
    assert ask(server, "state", "PUT")[0] == 501
    assert ask(server, "state?" + "&".join(f"a{i}=1" for i in range(30)))[0] == 400


def test_errors_of_routes(server, caplog):
    assert post(server, "wrong", 1) == (400, {"error": "no such frame"})
    status, _, body = ask(server, "bug")
    assert status == 500
    assert b"division" not in body
    assert "division by zero" in caplog.text
    assert ask(server)[0] == 200  # it goes on


def read_event(reply):
    """Return the next state of a stream."""
    while True:
        line = reply.readline()
        assert line
        if line.startswith(b"data: "):
            return json.loads(line[6:])


def test_stream(server):
    channel = server.stream("events")
    channel.push({"views": 1})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", f"/{server.token}/events")
    reply = connection.getresponse()
    assert reply.headers["Content-Type"] == "text/event-stream"
    assert read_event(reply) == {"views": 1}  # the newest, at once
    channel.push({"views": 2, "text": "a\nb"})
    assert read_event(reply) == {"views": 2, "text": "a\nb"}
    with pytest.raises(ValueError, match="Out of range float"):
        channel.push(float("nan"))
    # a page that is gone does not hold its thread: the next state finds out
    threads = threading.active_count()
    reply.close()
    connection.close()
    for i in range(200):
        channel.push(i)
        if threading.active_count() < threads:
            break
        threading.Event().wait(0.01)
    assert threading.active_count() < threads


def test_closing_ends_streams_and_port():
    with LoopbackServer() as server:
        server.stream("events").push(1)
        server.page("nothing-yet", lambda: "nothing")
        server.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.request("GET", f"/{server.token}/events")
        reply = connection.getresponse()
        assert read_event(reply) == 1
        port = server.port
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        kept.request("GET", f"/{server.token}/nothing-yet")
        assert kept.getresponse().read()
    reply.read()  # ends
    assert kept.sock.recv(1) == b""  # what a browser keeps open ends too
    kept.close()
    connection.close()
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_slow_pages_skip_states():
    channel = module.Channel()
    listener = channel.listen(beat_s=0.01)
    assert next(listener) is None  # nothing yet: a sign of life
    channel.push(1)
    channel.push(2)
    assert next(listener) == "2"
    channel.close()
    assert next(listener, "end") == "end"


def test_many_connections(monkeypatch):
    monkeypatch.setattr(module, "_MOST_CONNECTIONS", 3)
    with LoopbackServer() as server:
        server.page("", lambda: "")
        server.start()
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        refused = 0
        for connection in held:
            connection.settimeout(0.2)
            try:
                refused += connection.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                refused += 1
        assert refused == 2
        for connection in held:
            connection.close()
        threading.Event().wait(0.3)
        assert ask(server)[0] == 200


def test_ports(server):
    with pytest.raises(DataError, match=f"port {server.port} of 127.0.0.1 is taken") as caught:
        LoopbackServer(server.port)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="port is 70000"):
        LoopbackServer(70000)


def test_names_of_routes(server):
    with pytest.raises(InputError, match="is there twice"):
        server.get("state", dict)
    with pytest.raises(InputError, match="needs small letters"):
        server.page("a/b", lambda: "")
