"""Reading what `lifcal depth` wrote."""

import json

import numpy as np
import pytest

from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError
from lifcal.export.rgbd import encode_depth, write_intrinsics, write_lists
from lifcal.export.rgbd_folder import open_rgbd
from lifcal.imaging.files import write_png

INTRINSICS = PinholeIntrinsics(40, 30, 50.0, 51.0, 19.5, 14.0)


@pytest.fixture
def folder(tmp_path, rng):
    write_intrinsics(tmp_path / "intrinsics.json", INTRINSICS, 2000)
    write_lists(tmp_path, [(0.0, "a"), (2.5, "b.c")])
    for name in ("a", "b.c"):
        (tmp_path / "rgb").mkdir(exist_ok=True)
        (tmp_path / "depth").mkdir(exist_ok=True)
        write_png(tmp_path / "rgb" / f"{name}.png", rng.integers(0, 255, (30, 40)).astype(np.uint8))
        depth = rng.uniform(400.0, 900.0, (30, 40)).astype(np.float32)
        depth[0, 0] = np.nan
        np.save(tmp_path / f"{name}.npy", depth)
        write_png(tmp_path / "depth" / f"{name}.png", encode_depth(depth, 2000))
    return tmp_path


def test_it_is_read_as_written(folder):
    recording = open_rgbd(folder)
    assert recording.intrinsics == INTRINSICS
    assert recording.names == ("a", "b.c")
    assert recording.times == (0.0, 2.5)
    for index, name in enumerate(recording.names):
        assert recording.read_image(index).shape == (30, 40)
        wanted = np.load(folder / f"{name}.npy")
        np.testing.assert_allclose(recording.read_depth(index), wanted, atol=0.251)
        assert recording.read_sigma(index) is None
    (folder / "depth_sigma").mkdir()
    write_png(folder / "depth_sigma" / "a.png", encode_depth(0.01 * wanted, 20000))
    np.testing.assert_allclose(recording.read_sigma(0), 0.01 * wanted, atol=0.0251)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("associations.txt", None, "not a folder that lifcal depth finished"),
        ("intrinsics.json", None, "not a folder that lifcal depth finished"),
        ("intrinsics.json", "[1]", "intrinsics.json"),
        ("intrinsics.json", json.dumps({"width": 40}), "not as lifcal depth writes it"),
        ("intrinsics.json", "{", "intrinsics.json"),
        ("associations.txt", "zero rgb/a.png 0 depth/a.png\n", "line 1"),
        ("associations.txt", "\n0.0\n", "line 2"),
        ("associations.txt", "\n", "has no frames"),
    ],
)
def test_what_is_wrong_is_said(folder, file, content, words):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(DataError, match=words):
        open_rgbd(folder)


def test_an_image_of_another_size(folder):
    write_png(folder / "depth" / "a.png", np.ones((20, 40), np.uint16))
    with pytest.raises(DataError, match=r"a\.png: 40 x 20 px, the camera has 40 x 30 px"):
        open_rgbd(folder).read_depth(0)
