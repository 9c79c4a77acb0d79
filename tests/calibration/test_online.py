"""Online calibration: it grows, refuses what it must, goes on after a stop, and stays bounded."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle.record import encode
from lifcal.calibration import (
    FrameStatus,
    OnlineOptions,
)
from lifcal.calibration.drift import ESTIMATED_ANEW, Drift, compute_moves, follow_change
from lifcal.camera import BrownDistortion, NoDistortion
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.imaging.filters import smooth
from lifcal.reconstruction import Reconstruction


@pytest.fixture(scope="module")
def grown(live_recording):
    """A calibration without any hint, after nine frames."""
    recording = live_recording
    calibrator = recording.start()
    updates = [calibrator.add_frame(raw) for raw in recording.raws[:9]]
    yield calibrator, updates
    calibrator.close()


@pytest.fixture
def recording(live_recording):
    return live_recording


def digest(calibrator):
    """All that the state holds, as bytes."""
    arrays = {}
    tree = encode(calibrator.state, arrays)
    return repr(tree), {name: array.tobytes() for name, array in arrays.items()}


def test_it_starts_without_a_hint_and_grows(recording, grown):
    calibrator, updates = grown
    statuses = [update.status for update in updates]
    assert statuses[:3] == [FrameStatus.WAITING] * 3
    assert statuses[3] is FrameStatus.USED
    assert statuses.count(FrameStatus.USED) >= 4
    assert not updates[2].values
    first, last = updates[3], updates[-1]
    truth = recording.camera.array
    for update in (first, last):
        for name, true in (("F", truth.focal_px), ("alpha", truth.alpha)):
            assert abs(update.values[name] - true) < 4.0 * update.sigmas[name]
    names = ("F", "alpha", "c_x", "c_y")
    assert sum(np.log(last.sigmas[name] / first.sigmas[name]) for name in names) < 0.0
    assert last.coverage.mean() > 0.5
    assert last.n_keyframes > 4
    assert {"F", "alpha", "beta", "f_L", "b_L0", "B", "c_x", "c_y"} == set(last.values)
    assert any(update.changes for update in updates)
    # the path has the shape of the true one, in millimetres once markers were measured
    path = calibrator.path
    assert len(path) == sum(status.counts for status in statuses[4:])
    places = np.array([pose.inverse().translation_mm for _, pose in path])
    truth_places = np.array([recording.poses[int(at)].translation_mm for at, _ in path])
    true_length = np.linalg.norm(truth_places[-1] - truth_places[0])
    assert np.linalg.norm(places[-1] - places[0]) == pytest.approx(true_length, rel=0.03)


def test_advice_is_given_until_done(grown):
    calibrator, updates = grown
    if updates[-1].done:
        assert updates[-1].advice is None or calibrator.state.done
    else:
        assert updates[-1].advice.text
    assert calibrator.camera.scale_source == "markers"


def make_bad(recording):
    raw = recording.raws[10]
    blurred = smooth(raw.astype(np.float32), 0.9).astype(np.uint8)
    bright = np.where(raw > 60, 255, raw).astype(np.uint8)
    return {
        FrameStatus.DUPLICATE: recording.raws[5],
        FrameStatus.DARK: np.zeros_like(raw),
        FrameStatus.BLURRED: blurred,
        FrameStatus.SATURATED: bright,
        FrameStatus.OTHER_SCENE: recording.stranger,
        FrameStatus.UNUSABLE: raw[:-2],
    }


def test_bad_frames_change_nothing(recording, grown):
    calibrator, _ = grown
    before = digest(calibrator)
    for status, raw in make_bad(recording).items():
        update = calibrator.add_frame(raw)
        allowed = {status}
        if status is FrameStatus.OTHER_SCENE:
            allowed.add(FrameStatus.LOST)  # chance matches more or less
        assert update.status in allowed, (update.status, update.text)
        assert not update.status.counts
        assert update.text.endswith(".")
        assert digest(calibrator) == before
    late = calibrator.add_frame(recording.raws[11], timestamp=1.5)
    assert late.status is FrameStatus.OUT_OF_ORDER
    sixteen = calibrator.add_frame(recording.raws[11].astype(np.uint16) * 256)
    assert sixteen.status is FrameStatus.UNUSABLE
    assert "16 bits" in sixteen.text
    assert digest(calibrator) == before
    float_frame = calibrator.add_frame(recording.raws[11].astype(np.float32))
    assert float_frame.status is FrameStatus.UNUSABLE


def say_what_goes_wrong(straight, resumed, monkeypatch):
    """An earlier calibration that the frames contradict, and a window that determines nothing."""
    prior = straight.state.prior
    sigmas = np.sqrt(np.diag(prior.covariance))
    straight.state.prior = replace(prior, mean=prior.mean + 10.0 * sigmas)
    straight._noticed = []
    straight._compare_prior(straight.state.solution.adjustment)
    assert [each.code for each in straight._noticed] == ["prior-contradicted"]
    straight.state.prior = prior

    def fail(*_):
        raise EstimationError("nothing is determined", stage="bundle")

    monkeypatch.setattr("lifcal.calibration.online.solve_window", fail)
    resumed._noticed = []
    if resumed.state.pending is None:
        resumed._begin()
    resumed._take_in()
    assert [each.code for each in resumed._noticed] == ["online-not-determined"]
    monkeypatch.undo()


def test_a_lens_that_is_focused_anew_is_noticed(recording, grown):
    """The map is given a camera whose lens is elsewhere, as if it had been focused since."""
    calibrator, _ = grown
    pixel = calibrator.options.pixel_size_mm
    true = recording.camera.parameters.lens_to_array_mm
    calibrator._forget_pending()
    live = calibrator.map
    before = live.camera.array.to_physical(pixel).lens_to_array_mm
    live.camera = follow_change(live.camera, pixel, Drift("b_L0", -0.003 * true, 1))
    landmarks, sigmas = len(live.points_world), dict(calibrator.state.sigmas)
    findings = []
    for raw in recording.raws[9:]:
        update = calibrator.add_frame(raw)
        findings += update.findings
        if findings:
            break
    (changed,) = findings
    assert changed.code == "camera-changed"
    assert changed.evidence["parameter"] == "b_L0"
    assert changed.evidence["change"] == pytest.approx(0.003 * true, rel=0.25)
    assert update.values["b_L0"] == pytest.approx(before, rel=1e-3)
    assert update.sigmas["b_L0"] > 0.02 * true
    # F, alpha and beta follow from b_L0, so they are as little known as it is; c has not changed
    physical = live.camera.array.to_physical(pixel)
    moved = np.abs(physical.array_jacobian(pixel)[:, 1]) * 0.03 * physical.lens_to_array_mm
    for name, least in zip(("F", "c_x", "c_y", "alpha", "beta"), moved, strict=True):
        # 2 %: the derivative is that of the camera before the change, of 0.3 %
        assert 0.98 * least <= update.sigmas[name] < 1.02 * least + 1.01 * sigmas[name]
    assert not update.done
    prior = calibrator.state.prior
    assert prior.source == "earlier calibration"
    own = dict(zip(prior.names, np.sqrt(np.diag(prior.covariance)), strict=True))
    assert own["F"] >= 0.98 * moved[0]
    assert own["alpha"] >= 0.98 * moved[3]
    assert own["c_x"] < 0.02 * calibrator.engine.grid.image_size[0]
    assert not live.keyframes
    assert len(live.points_world) == landmarks  # the scene has not changed


def test_what_is_estimated_anew_after_a_change(recording):
    array, pixel = recording.camera.array, recording.camera.pixel_size_mm
    camera = Reconstruction(
        array, BrownDistortion(), np.zeros((0, 3, 3)), np.zeros((0, 3)), np.zeros((0, 3))
    )
    for name, sigma in (("b_L0", 1e-5), ("B", 1e-6), ("c_x", 1.0)):
        other = follow_change(camera, pixel, Drift(name, sigma, 1)).array
        (move,) = compute_moves(array, pixel, {name: sigma})
        # differences over 1e-5 mm are exact to about 1e-5 of themselves
        np.testing.assert_allclose(move, other.as_vector() - array.as_vector(), 1e-4, 1e-9)
    # a bump is noticed along one axis, and both coordinates of c are estimated anew
    assert ESTIMATED_ANEW["c_x"] == ESTIMATED_ANEW["c_y"] == ("c_x", "c_y")
    moves = compute_moves(array, pixel, dict.fromkeys(ESTIMATED_ANEW["c_x"], 5.0))
    np.testing.assert_array_equal(moves, [[0.0, 5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0, 0.0]])


def test_after_a_stop_it_goes_on_as_if_there_had_been_none(recording, tmp_path, monkeypatch):
    """Saved while an adjustment is under way, and with frames that were in the background."""
    camera = recording.known_camera()
    straight = recording.start(camera, background=True)
    for raw in recording.raws[:6]:
        straight.add_frame(raw)
    assert straight.state.pending is not None
    straight.save(tmp_path)
    resumed = recording.start(camera, background=False)
    resumed.load(tmp_path)
    assert digest(resumed) == digest(straight)
    for raw in recording.raws[6:9]:
        one, other = straight.add_frame(raw), resumed.add_frame(raw)
        assert one.status == other.status
        assert dict(one.values) == dict(other.values)
        assert dict(one.sigmas) == dict(other.sigmas)
        assert one.advice == other.advice
    assert digest(resumed) == digest(straight)
    assert straight.state.solution is not None
    say_what_goes_wrong(straight, resumed, monkeypatch)
    # the earlier calibration gives the scale, and is known better now
    assert straight.state.sigmas["F"] < 1.5 * 2e-3 * camera.array.focal_px
    straight.close()
    resumed.close()

    (tmp_path / "state.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="damaged"):
        resumed.load(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        resumed.load(tmp_path / "elsewhere")


def test_the_window_is_bounded_and_what_left_is_kept(recording):
    calibrator = recording.start(
        recording.known_camera(),
        window=8,
        lag=1,
        background=False,
        least_gain=0.0,
        least_motion=0.0,
    )
    before = calibrator.state.prior
    most = 0
    for raw in recording.raws:
        update = calibrator.add_frame(raw)
        most = max(most, len(calibrator.map.keyframes))
    state = calibrator.state
    assert state.n_keyframes == len(recording.raws)
    assert most < len(recording.raws)
    assert len(calibrator.map.keyframes) <= 10
    assert state.prior is not before
    names = list(state.prior.names)
    after = np.sqrt(np.diag(state.prior.covariance))[names.index("F")]
    assert after < np.sqrt(before.covariance[0, 0])
    true = recording.camera.array.focal_px
    assert abs(update.values["F"] - true) < 4.0 * update.sigmas["F"]
    assert state.solution.adjustment.cross_validation is not None
    calibrator.map.drop_landmarks(700)
    assert len(calibrator.map.points_world) == 700
    assert max(frame.landmarks.max() for frame in calibrator.map.keyframes) < 700


def test_what_cannot_be_done_is_said(recording):
    with pytest.raises(InputError, match="no covariance"):
        recording.start(replace(recording.camera, scale_source="markers"))
    known = recording.known_camera()
    with pytest.raises(InputError, match="without a scale"):
        recording.start(replace(known, scale_source=None))
    with pytest.raises(InputError, match="pixels of 10 um"):
        recording.start(replace(known, pixel_size_mm=0.01))
    with pytest.raises(InputError, match="window"):
        OnlineOptions(window=2)
    with pytest.raises(InputError, match="least_gain"):
        OnlineOptions(least_gain=-1.0)
    plain = replace(
        recording.camera,
        distortion=NoDistortion(),
        scale_source="markers",
        covariance=known.covariance[:5, :5],
    )
    assert "k0" in recording.start(known).state.prior.names
    assert len(recording.start(plain).state.prior.names) == 5
    empty = recording.start()
    assert empty.camera is None
    with pytest.raises(EstimationError, match="no camera is known"):
        empty.finish()
    black = empty.add_frame(np.zeros((480, 640), np.uint8))
    assert black.status is FrameStatus.DARK
    assert black.name == "frame0"
    empty.close()
