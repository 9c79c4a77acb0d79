"""The page of depth maps: what it holds is what was given."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from lifcal.camera import PinholeIntrinsics
from lifcal.imaging.files import decode_image
from lifcal.report.depth_page import DepthView, render_depth_page

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


def read_depth(data, index=0):
    entry = data["frames"][index]
    split = decode_image(Path("depth.png"), base64.b64decode(entry["depth"])).astype(np.float64)
    return (256.0 * split[:, :, 0] + split[:, :, 1]) * data["unit_mm"]


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
    assert "http" not in re.sub(r'"(image|depth)":"[^"]*"|http-equiv', "", page)
    assert [frame["name"] for frame in read_data(page)["frames"]] == ["0007", "<b>&"]


def test_nothing_known(rng):
    view = make_view(rng)
    blank = DepthView("a", view.image, np.full_like(view.depth_mm, np.nan))
    data = read_data(render_depth_page([blank], INTRINSICS, "a"))
    assert (read_depth(data) == 0.0).all()
    assert data["far_mm"] > data["near_mm"]
