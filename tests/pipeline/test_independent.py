"""Recordings of an independent ray tracer beside the repository, with truth."""

import json
import shutil

import numpy as np
import pytest

from lifcal.calibration import CalibrateOptions
from lifcal.imaging.frames import open_frames
from lifcal.pipeline.calibration import FILES, calibrate_frames
from lifcal.scale import ScaleOptions

pytestmark = pytest.mark.slow
PIXEL_UM = 4.5


@pytest.fixture(scope="module")
def tilted(shared_data):
    folder = shared_data / "independent" / "tilted"
    if not folder.is_dir():
        pytest.skip("the independent recordings are not here")
    return folder


def calibrate(folder, out, scale):
    frames = open_frames([str(folder / "raw")])
    sources = {"grid": None, "white": folder / "white.png", "xml": None}
    return calibrate_frames(frames, out, CalibrateOptions(PIXEL_UM, scale=scale), sources)


def test_distances_between_markers_with_plain_centers(tilted, tmp_path):
    """The center of marker 21 is plain black. By distance and by size, the scale is the same."""
    truth = json.loads((tilted / "truth" / "markers.json").read_text())
    by_size = calibrate(tilted, tmp_path / "size", ScaleOptions(marker_size_mm=80.0))
    out = tmp_path / "distance"
    shutil.copytree(tmp_path / "size", out)  # the same poses
    for name in FILES:
        (out / name).unlink()
    distances = tuple(
        (*entry["ids"], 1000.0 * entry["m"], 0.16) for entry in truth["centre_distances"]
    )
    by_distance = calibrate(tilted, out, ScaleOptions(marker_distances=distances))
    values, sigmas = (
        np.array([result.summary["parameters"]["B"][key] for result in (by_size, by_distance)])
        for key in ("value", "sigma")
    )
    assert abs(values[0] - values[1]) < np.hypot(*sigmas)
    assert by_distance.summary["scale_source"] == "markers"
    true = json.loads((tilted / "truth" / "camera.json").read_text())["B_mm"]
    np.testing.assert_allclose(values, true, rtol=0.02)
