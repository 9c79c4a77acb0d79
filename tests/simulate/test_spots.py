"""Where small bright balls land: the optics against the camera model (see benchmarks/spots.py)."""

import numpy as np
import pytest

from benchmarks.spots import measure_spots, rms
from lifcal.simulate import build_camera


@pytest.mark.parametrize("name", ["r5-16mm", "mini-keplerian"])
def test_small_apertures_put_balls_on_the_projected_points(name, rng):
    optics = build_camera(name).stopped_down(0.05)
    spots = measure_spots(optics, optics.focal_planes_v * 1.1, rng, balls_per_depth=3)
    assert len(spots.defocus) > 10
    assert rms(spots.error_px) < 0.03


def test_full_apertures_in_focus_and_out_of_focus(rng):
    optics = build_camera("r5-16mm")
    spots = measure_spots(optics, optics.focal_planes_v, rng, balls_per_depth=5, reach=0.8)
    sharp = np.abs(spots.defocus) < 1e-9
    assert rms(spots.where(sharp).error_px) < 0.03
    blurred = spots.where(~sharp)
    # Out of focus the shift is large, and what the overlap of the apertures says it is.
    assert rms(blurred.error_px) > 0.08
    assert rms(blurred.residual_px()) < 0.02
    predicted, found = blurred.predicted_px, blurred.outward_px()
    slope = float(predicted @ found / (predicted @ predicted))
    assert 0.95 < slope < 1.05
    rim = np.abs(predicted) > 0.1
    assert (np.sign(found[rim]) == np.sign(blurred.defocus[rim])).all()
    assert rim.sum() > 5


def test_keplerian_balls_out_of_focus(rng):
    """The rays have crossed before the micro lens: the shift has the other sign."""
    optics = build_camera("mini-keplerian")
    spots = measure_spots(optics, np.array([-3.2]), rng, balls_per_depth=8, reach=0.8)
    assert rms(spots.residual_px()) < 0.02
    rim = np.abs(spots.predicted_px) > 0.1
    assert rim.sum() > 5
    assert (spots.defocus > 0).all()
    assert (spots.outward_px()[rim] < 0).all()
