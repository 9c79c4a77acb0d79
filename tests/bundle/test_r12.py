"""Real corners of a Raytrix R12, target-free: the board is only used for scale and to judge."""

import pytest

from benchmarks.bundle import adjust_r12
from benchmarks.r12 import judge_board
from tests.bundle.cases import texts_of


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "focus"])
def found(request, shared_data):
    if not (shared_data / "R12-A").is_dir():
        pytest.skip("the R12-A data are not here")
    return request.param, adjust_r12(focus=request.param)


def test_every_frame_is_registered(found):
    _, adjustment = found
    assert adjustment.summary.n_views == 15
    assert adjustment.summary.n_points == 45
    assert not any("could not be joined" in note for note in texts_of(adjustment))


def test_residuals(found):
    focus, adjustment = found
    summary = adjustment.summary
    assert summary.rms_all_px < (0.66 if focus else 0.68)
    assert summary.rms_px < summary.rms_all_px
    by_type = {
        kind: [row.percent for row in summary.residual_scale if row.lens_type == kind]
        for kind in range(3)
    }
    if focus:
        assert max(abs(value) for values in by_type.values() for value in values) < 1.0
    else:
        # the systematic error of the plain model, by lens type, at every depth
        assert min(by_type[0]) > 4.0
        assert max(by_type[1]) < -2.5


def test_board(found):
    _, adjustment = found
    spacing, flatness = judge_board(
        adjustment.state.points_world_mm, adjustment.problem.observations.point_ids
    )
    assert spacing < 0.05
    assert flatness < 0.21


def test_array_to_sensor_distance(found):
    """The plain model's B, as others found it; the term lowers it and widens its sigma."""
    focus, adjustment = found
    b = adjustment.camera.parameters.array_to_sensor_mm
    sigma = adjustment.covariance.sigmas()["B"]
    if focus:
        assert 0.2 < b < 0.38
        assert sigma > 0.03 * b
    else:
        assert 0.38 < b < 0.40
        assert sigma < 0.005 * b
