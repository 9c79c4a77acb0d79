"""`lifcal pick` as a user meets it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.cli.process import hear_interrupts
from tests.pipeline import picking_cases as cases


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pick")
    cases.make_focus_folder(folder, calibrated=False)
    return folder


def test_a_page_until_ctrl_c(folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "lifcal", "pick", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
        env={**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": "", "PYTHONUNBUFFERED": "1"},
    )
    url = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", process.stdout.readline()).group()
    with urllib.request.urlopen(url) as reply:
        assert "Pick points" in reply.read().decode()
    point = {"frame": 0, "points": [[150, 120], [210, 90]], "mm": 40}
    request = urllib.request.Request(
        f"{url}add", json.dumps(point).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        assert len(json.load(reply)["distances"]) == 1
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "1 distance in" in said.replace("\n", " ")
    assert f"--distances {folder / 'distances.txt'}" in said.replace("\n", "")
    assert "there is no browser to open here" in errors
    assert "Traceback" not in errors


def test_a_taken_port(folder, here):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = here("pick", folder, "--port", port, "--no-browser")
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_folder_and_file(folder, here, tmp_path):
    done = here("pick", tmp_path)
    assert done.returncode == 1
    assert "not a folder of lifcal focus or lifcal calibrate" in done.stderr
    wrong = tmp_path / "notes.txt"
    wrong.write_text("buy milk\n")
    done = here("pick", folder, "-o", wrong)
    assert done.returncode == 1
    assert "line 1" in done.stderr
    assert wrong.read_text() == "buy milk\n"
