"""The page of lifcal pick, used as a person would: clicks, keys and fingers in a real browser."""

import pytest

from lifcal.distances import read_picked_distances
from lifcal.pipeline.picking import PickFolder
from lifcal.report.pick_page import render_pick_page, serve_picking
from lifcal.report.server import LoopbackServer
from tests.browser import open_browser
from tests.pipeline import picking_cases as cases
from tests.report.test_page import check
from tests.report.test_server import ask, post

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pick")
    cases.make_focus_folder(folder)
    return folder


@pytest.fixture
def server(folder, tmp_path):
    with LoopbackServer() as server:
        serve_picking(server, PickFolder(folder, tmp_path / "known.txt"), f"lifcal {EVIL}")
        server.start()
        yield server


def test_the_page_needs_nothing_else():
    page = render_pick_page()
    assert "http:" not in page.replace("http://127.0.0.1", "")
    assert "https:" not in page
    assert all(load.startswith("data:") for load in check(page).loads)


def test_routes(server):
    assert ask(server, "image?frame=1")[1]["Content-Type"] == "image/png"
    for query in ("", "?frame=x", "?frame=-1", "?frame=99", "?frame=../../focus.json"):
        assert ask(server, f"image{query}")[0] == 400
    wrong = [
        *([], None, {}, {"frame": 0}, {"frame": True, "points": [[1, 2]]}),
        *({"frame": 0, "points": []}, {"frame": 0, "points": [[1]]}),
        *({"frame": 0, "points": [["1", 2]]}, {"frame": 0, "points": [[1, 2]] * 3}),
    ]
    for content in wrong:
        assert post(server, "locate", content)[0] == 400
        assert post(server, "add", content)[0] == 400
    two = {"frame": 0, "points": [[150, 120], [210, 90]]}
    for more in ({}, {"mm": "5"}, {"mm": None}, {"mm": 5, "sigma": "1"}, {"mm": -5}):
        assert post(server, "add", {**two, **more})[0] == 400
    assert post(server, "remove", {"line": 1})[0] == 400
    status, said = post(server, "add", {**two, "mm": 5})
    assert status == 200
    (entry,) = said["distances"]
    assert post(server, "remove", {**entry, "mm": 6.0})[0] == 400  # another distance is there
    assert post(server, "remove", entry) == (200, {"distances": []})


def open_page(browser, server, **size):
    page = browser.page(**size)
    page.open(server.url)
    page.wait("document.body.dataset.ready === 'yes'")
    return page


def test_two_clicks_and_millimetres(browser, server, tmp_path):
    page = open_page(browser, server)
    page.click("#image", 0.5, 0.5)
    page.wait("document.getElementById('reading').textContent.includes('depth')")
    assert page.run("document.getElementById('add').disabled")
    page.click("#image", 0.6, 0.4)
    page.wait("document.querySelectorAll('#views canvas').length === 8")
    page.click("#mm")
    page.type("130.5")
    page.click("#add")
    page.wait("document.getElementById('list').textContent.includes('130.5')")
    (found,) = read_picked_distances(tmp_path / "known.txt")
    assert found.frame == "0002"
    assert found.first_px == pytest.approx((159.5, 119.5), abs=0.6)
    # the canvas is higher or wider than the image, which fills the other side
    _, _, width, height = page.box("#image")
    zoom = min(width / 320, height / 240)
    assert found.second_px == pytest.approx(
        (159.5 + 0.1 * width / zoom, 119.5 - 0.1 * height / zoom), abs=0.6
    )
    assert found.length_mm == 130.5
    assert found.sigma_mm > 0.5
    # and away with it
    page.click("#list button:last-child")
    page.wait("document.getElementById('list').textContent.includes('None yet')")
    assert page.text("#command") == f"lifcal {EVIL}"
    assert page.problems == []


def test_unknown_depth_is_told(browser, server, tmp_path):
    page = open_page(browser, server)
    page.click("#image", 0.2, 0.1)
    page.wait("document.getElementById('reading').textContent.includes('Depth is unknown')")
    page.click("#image", 0.5, 0.5)
    page.wait("document.getElementById('reading').textContent.includes('unknown at point 1')")
    assert page.run("document.getElementById('add').disabled")
    assert not (tmp_path / "known.txt").exists()
    assert page.problems == []


def test_keys_alone(browser, server, tmp_path):
    page = open_page(browser, server)
    page.press("n", text="n")
    page.wait("document.getElementById('frame').value === '3'")
    page.wait("document.body.dataset.shown === '3'")  # nothing is picked before
    page.run("document.getElementById('image').focus()")
    for key in ("ArrowRight", "Enter"):
        page.press(key)
    for _ in range(30):
        page.press("ArrowUp")
    page.press("Enter")
    page.wait("!document.getElementById('add').disabled")
    page.run("document.getElementById('mm').focus()")
    page.type("40")
    page.run("document.getElementById('sigma').focus()")
    page.type("0.25")
    page.press("Enter", text="\r")
    page.wait("document.getElementById('list').textContent.includes('40')")
    (found,) = read_picked_distances(tmp_path / "known.txt")
    assert (found.frame, found.length_mm, found.sigma_mm) == ("0003", 40.0, 0.25)
    assert found.first_px[0] == found.second_px[0]
    assert found.first_px[1] - found.second_px[1] == pytest.approx(30.0)
    assert page.problems == []


def test_a_phone(browser, server):
    page = open_page(browser, server, width=400, height=700, touch=True)
    assert page.run("document.documentElement.scrollWidth") <= 400
    page.run("scrollTo(0, 0)")
    page.drag_finger("#image", 0, -200)
    page.wait("scrollY > 100")
    # zoomed in, the same finger moves the image
    page.click("#in")
    page.click("#in")
    page.wait("document.getElementById('image').classList.contains('zoomed')")
    page.wait("document.getElementById('zoom').textContent !== ''")
    before = page.run("[scrollY, document.getElementById('image').toDataURL()]")
    page.drag_finger("#image", 40, 60)
    page.wait(f"document.getElementById('image').toDataURL() !== {before[1]!r}")
    assert page.text("#chosen") == "–"  # moving is no click
    assert page.problems == []


def test_no_poses_are_told(browser, tmp_path):
    cases.make_focus_folder(tmp_path, calibrated=False)
    with LoopbackServer() as server:
        serve_picking(server, PickFolder(tmp_path), "")
        server.start()
        page = open_page(browser, server)
        assert "not known before a calibration" in page.text("#others-how")
        assert page.problems == []
    page.click("#image")
    page.wait("document.getElementById('message').textContent.includes('has ended')")
