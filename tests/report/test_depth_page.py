"""The page of depth maps: what it holds is what was given."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from lifcal.camera import PinholeIntrinsics
from lifcal.imaging.files import decode_image
from lifcal.report.depth_page import DepthView, SceneView, render_depth_page, write_depth_page
from tests.browser import open_browser

SIZE = (1300, 700)
INTRINSICS = PinholeIntrinsics(*SIZE, 1400.0, 1390.0, 640.0, 355.0)


def make_view(rng, name="0007", far=3000.0):
    """A leaning plane with a hole, and noise for an image."""
    x, y = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    depth = (600.0 + (far - 600.0) * x / (SIZE[0] - 1) + 0.1 * y).astype(np.float32)
    depth[100:200, 300:500] = np.nan
    return DepthView(name, rng.integers(0, 255, (SIZE[1], SIZE[0], 3)).astype(np.uint8), depth)


def read_data(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def read_depth(data, index=0, kind="depth", unit="unit_mm"):
    entry = data["frames"][index]
    split = decode_image(Path("depth.png"), base64.b64decode(entry[kind])).astype(np.float64)
    return (256.0 * split[:, :, 0] + split[:, :, 1]) * data[unit]


@pytest.mark.parametrize("far", [3000.0, 40000.0])
def test_depths_and_their_places(rng, far):
    view = make_view(rng, far=far)
    data = read_data(render_depth_page([view], INTRINSICS, "a"))
    depth = read_depth(data)
    rows, cols = depth.shape
    assert max(rows, cols) <= 512
    assert (data["frames"][0]["rows"], data["frames"][0]["cols"]) == (rows, cols)
    y, x = np.indices(depth.shape)
    # back to pixels of the full image, by the rays
    full_x = (x - data["cx"]) / data["fx"] * INTRINSICS.fx + INTRINSICS.cx
    full_y = (y - data["cy"]) / data["fy"] * INTRINSICS.fy + INTRINSICS.cy
    np.testing.assert_allclose(full_x, np.rint(full_x), atol=1e-9)
    wanted = view.depth_mm[np.rint(full_y).astype(int), np.rint(full_x).astype(int)]
    np.testing.assert_array_equal(depth == 0.0, np.isnan(wanted))
    known = depth > 0.0
    assert np.abs(depth - wanted)[known].max() <= 0.51 * data["unit_mm"]
    assert data["unit_mm"] == pytest.approx(0.1 if far < 6000.0 else view.depth_mm[-1, -1] / 65535)
    # colors reach over nearly all of it
    assert 600.0 < data["near_mm"] < 600.0 + 0.03 * far
    assert 0.95 * far < data["far_mm"] < far + 70.0


def test_the_page_needs_nothing_else(rng):
    gray = DepthView("<b>&", make_view(rng).image[:, :, 0], make_view(rng).depth_mm)
    page = render_depth_page([make_view(rng), gray], INTRINSICS, "<script>alert(1)</script>")
    assert "<script>alert" not in page
    assert "<b>&" not in page
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", page)
    assert "http" not in re.sub(r'"(image|depth|sigma)":"[^"]*"|http-equiv', "", page)
    assert [frame["name"] for frame in read_data(page)["frames"]] == ["0007", "<b>&"]


def test_nothing_known(rng):
    view = make_view(rng)
    blank = DepthView("a", view.image, np.full_like(view.depth_mm, np.nan))
    data = read_data(render_depth_page([blank], INTRINSICS, "a"))
    assert (read_depth(data) == 0.0).all()
    assert data["far_mm"] > data["near_mm"]


def test_sigma(rng):
    view = make_view(rng)
    sigma = np.where(np.isfinite(view.depth_mm), 0.002 * view.depth_mm, np.nan).astype(np.float32)
    bare = make_view(rng)
    views = [DepthView("a", view.image, view.depth_mm, sigma), bare]
    data = read_data(render_depth_page(views, INTRINSICS, "a"))
    found = read_depth(data, 0, "sigma", "sigma_unit_mm")
    step = data["step"]
    wanted = sigma[step // 2 :: step, step // 2 :: step]
    known = np.isfinite(wanted)
    np.testing.assert_array_equal(found > 0.0, known)
    # 65535 steps up to the largest, 6 mm: finer than any sigma is known
    assert np.abs(found - wanted)[known].max() < 0.001
    assert data["frames"][1]["sigma"] is None
    assert 1.2 < data["sigma_low_mm"] < data["sigma_high_mm"] < 6.1


def unpack(scene):
    places = np.frombuffer(base64.b64decode(scene["places"]), "<u2").reshape(-1, 3)
    colors = np.frombuffer(base64.b64decode(scene["colors"]), np.uint8).reshape(-1, 3)
    return places * scene["unit_mm"] + np.array(scene["low_mm"]), colors


def test_scenes(rng, monkeypatch):
    points = rng.uniform(-500.0, 1500.0, (5000, 3)).astype(np.float32)
    colors = rng.integers(0, 255, (5000, 3)).astype(np.uint8)
    cloud = SceneView("fused <b>", points, colors)
    empty = SceneView("nothing", points[:0], colors[:0])
    page = render_depth_page([make_view(rng)], INTRINSICS, "a", [cloud, empty])
    assert "fused <b>" not in page
    (scene,) = read_data(page)["scenes"]
    found, shown = unpack(scene)
    np.testing.assert_allclose(found, points, atol=0.51 * 2000.0 / 65535 + 1e-3)
    np.testing.assert_array_equal(shown, colors)
    monkeypatch.setattr("lifcal.report.depth_page._MOST_POINTS", 100)
    (scene,) = read_data(render_depth_page([make_view(rng)], INTRINSICS, "a", [cloud]))["scenes"]
    assert scene["count"] == len(unpack(scene)[0]) == 100


@pytest.mark.parametrize("most", [1000, 60_000])
def test_meshes(rng, monkeypatch, most):
    monkeypatch.setattr("lifcal.report.depth_page._MOST_CORNERS", most)
    x, y = np.meshgrid(np.arange(70.0), np.arange(50.0))
    points = np.stack([x, y, 0.1 * x + 100.0], axis=-1).reshape(-1, 3).astype(np.float32)
    corner = (np.arange(49)[:, None] * 70 + np.arange(69)).ravel()
    triangles = np.concatenate(
        [
            np.stack([corner, corner + 1, corner + 70], 1),
            np.stack([corner + 1, corner + 71, corner + 70], 1),
        ]
    )
    colors = np.full((len(points), 3), (10, 100, 200), np.uint8)
    mesh = SceneView("mesh", points, colors, triangles)
    (scene,) = read_data(render_depth_page([make_view(rng)], INTRINSICS, "a", [mesh]))["scenes"]
    places, shown = unpack(scene)
    faces = np.frombuffer(base64.b64decode(scene["triangles"]), "<u2").reshape(-1, 3)
    assert len(places) <= most
    assert faces.max() < len(places)
    assert (shown == (10, 100, 200)).all()
    # still the same leaning surface, but for its rim
    np.testing.assert_allclose(places[:, 2], 0.1 * places[:, 0] + 100.0, atol=0.01)
    a, b, c = (places[faces[:, k], :2] for k in range(3))
    one, two = b - a, c - a
    area = 0.5 * np.abs(one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0]).sum()
    assert area == pytest.approx(69 * 49, rel=0.12)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def make_page(path, rng):
    """A wall at 800 mm, as wide as it is far, with a hole; and a cloud of all frames."""
    small = PinholeIntrinsics(200, 100, 200.0, 200.0, 99.5, 49.5)
    depth = np.full((100, 200), 800.0, np.float32)
    depth[:30, :40] = np.nan
    image = rng.integers(0, 255, (100, 200)).astype(np.uint8)
    sigma = np.where(np.isfinite(depth), 2.0, np.nan).astype(np.float32)
    points = rng.uniform(-100.0, 900.0, (2000, 3)).astype(np.float32)
    tints = rng.integers(0, 255, (2000, 3)).astype(np.uint8)
    triangles = np.arange(1998).reshape(-1, 3)
    scenes = [SceneView("fused cloud", points, tints), SceneView("mesh", points, tints, triangles)]
    views = [DepthView("one", image, depth, sigma), DepthView("two", image, depth, sigma)]
    write_depth_page(path, views, small, "<b>title", scenes)


def test_measuring(browser, tmp_path, rng):
    make_page(tmp_path / "view.html", rng)
    page = browser.page()
    page.open((tmp_path / "view.html").as_uri())
    page.wait("document.body.dataset.ready === 'yes'")
    page.click("#depth", 60.5 / 200, 50.5 / 100)
    assert "x 60, y 50 px: depth 800.0 ± 2.0 mm" in page.text("#measured")
    page.click("#image", 160.5 / 200, 50.5 / 100)
    # 100 px of 200 px focal length at 800 mm; ends at -39.5 and 60.5 px from the middle
    said = page.text("#measured")
    length, sigma = map(float, re.search(r"Distance ([\d.]+) ± ([\d.]+) mm", said).groups())
    assert length == pytest.approx(400.0, abs=0.05)
    rays = np.array([39.5, 60.5]) / 200.0
    pixels = 2.0 * (800.0 / 200.0) ** 2 / 12.0
    assert sigma == pytest.approx(np.sqrt(((2.0 * rays) ** 2).sum() + pixels), abs=0.05)
    # a hole has no depth
    page.click("#forget")
    page.click("#sigma", 0.1, 0.1)
    assert "Depth is unknown there" in page.text("#measured")
    # all scenes can be seen
    pictures = set()
    for value in ("frame", "0", "1"):
        page.run(
            f"(() => {{ const s = document.getElementById('what'); s.value = '{value}';"
            "s.dispatchEvent(new Event('change')); })()"
        )
        pictures.add(page.run("document.getElementById('cloud').toDataURL()"))
    assert len(pictures) == 3
    assert page.problems == []


def test_a_finger_scrolls(browser, tmp_path, rng):
    make_page(tmp_path / "view.html", rng)
    page = browser.page(400, 700, touch=True)
    page.open((tmp_path / "view.html").as_uri())
    page.wait("document.body.dataset.ready === 'yes'")
    assert page.run("document.documentElement.scrollWidth") <= 400
    for canvas in ("#image", "#depth", "#cloud"):
        page.box(canvas)
        before = page.run("scrollY")
        page.drag_finger(canvas, 0, 150 if canvas == "#cloud" else -150)
        page.wait(f"Math.abs(scrollY - {before}) > 50")
    assert page.problems == []
