"""`lifcal pick` as a user meets it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from lifcal.pipeline.picking import PickFolder
from lifcal.report.pick_page import serve_picking
from lifcal.report.server import LoopbackServer
from lifcal.simulate import Simulation, SimulationOptions, write_sequence
from tests.browser import open_browser
from tests.cli.process import hear_interrupts, lifcal
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


def test_other_users_do_not_see_the_token(folder, tmp_path):
    """They see the arguments of all processes, so those of the browser must not hold it."""
    program, seen = tmp_path / "browser.py", tmp_path / "seen.json"
    program.write_text(
        "import json, os, pathlib, sys, urllib.parse\n"
        "path = pathlib.Path(urllib.parse.urlsplit(sys.argv[1]).path)\n"
        "modes = [oct(each.stat().st_mode & 0o777) for each in (path, path.parent)]\n"
        "found = {'arguments': sys.argv, 'modes': modes, 'text': path.read_text()}\n"
        f"pathlib.Path({str(tmp_path / 'part')!r}).write_text(json.dumps(found))\n"
        f"os.replace({str(tmp_path / 'part')!r}, {str(seen)!r})\n"
    )
    browser = f"{sys.executable} {program} %s"
    process = subprocess.Popen(
        [sys.executable, "-m", "lifcal", "pick", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
        env={**os.environ, "DISPLAY": ":0", "BROWSER": browser, "PYTHONUNBUFFERED": "1"},
    )
    url = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", process.stdout.readline()).group()
    for _ in range(300):
        if seen.is_file():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    found = json.loads(seen.read_text())
    token = url.split("/")[3]
    assert token not in " ".join(found["arguments"])
    assert found["modes"] == ["0o600", "0o700"]
    assert f'content="0; url={url}"' in found["text"]
    path = Path(urllib.parse.urlsplit(found["arguments"][-1]).path)
    assert not path.parent.exists()


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


@pytest.mark.slow
def test_what_a_browser_writes_calibrates(tmp_path):
    """Focus, click at two corners of markers that are 200 mm apart or so, calibrate."""
    simulation = Simulation(SimulationOptions(camera="mini", scene="desk", frames=16))
    write_sequence(tmp_path, simulation)
    out, file = tmp_path / "camera", tmp_path / "known.txt"
    raws = ("--white", tmp_path / "white.png", "-o", out)
    assert lifcal("focus", tmp_path / "raw", *raws).returncode == 0
    camera, frame = simulation.optics.camera, simulation.render_frame(8)
    cam_from_world = frame.world_from_cam.inverse()
    corners = np.concatenate([marker.corners_world_mm for marker in simulation.scene.markers])
    seen = camera.virtual_from_cam(cam_from_world.apply(corners))[:, :2]
    seen = camera.distortion.distort(seen, camera.principal_point_px)
    pixels = (seen + 0.5) * 0.5 - 0.5
    inside = [i for i in range(len(pixels)) if 20 < pixels[i, 0] < 300 and 20 < pixels[i, 1] < 220]
    first, second = max(
        ((i, j) for i in inside for j in inside), key=lambda pair: np.ptp(pixels[list(pair), 0])
    )
    length = float(np.linalg.norm(corners[first] - corners[second]))
    with LoopbackServer() as server, open_browser() as browser:
        serve_picking(server, PickFolder(out, file), "")
        server.start()
        page = browser.page()
        page.open(server.url)
        page.wait("document.body.dataset.ready === 'yes'")
        for index in (first, second):
            _, _, width, height = page.box("#image")
            zoom = min(width / 320, height / 240)
            at = ((pixels[index] - (159.5, 119.5)) * zoom / (width, height) + 0.5).tolist()
            page.click("#image", *at)
        page.wait("!document.getElementById('add').disabled")
        page.click("#mm")
        page.type(f"{length:.1f}")
        page.click("#add")
        page.wait("document.getElementById('list').textContent.includes('±')")
        assert page.problems == []
    done = lifcal(
        *("calibrate", tmp_path / "raw", "--pixel-size-um", 1000.0 * camera.pixel_size_mm),
        *("--focal-length-mm", 16, "--distances", file, *raws, "--json"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["scale_source"] == "distances"
    beta = summary["parameters"]["beta"]
    assert abs(beta["value"] - camera.array.beta_mm) < 4.0 * beta["sigma"]
    assert beta["sigma"] < 0.03 * beta["value"]
