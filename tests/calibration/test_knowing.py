"""Targets, the worth of a frame, and advice."""

import numpy as np
import pytest

from benchmarks.bundle_scenes import make_scene
from lifcal.bundle import AdjustOptions, adjust
from lifcal.calibration.knowing import CERTAIN, MOTIONS, Worth, is_met, parse_targets
from lifcal.errors import ConfigError, InputError
from lifcal.geometry import RigidTransform
from lifcal.simulate import build_camera
from tests.bundle import cases


def test_targets_are_read_as_people_write_them():
    targets = parse_targets("F=0.05%, B=0.5%,c=1px")
    assert [str(each) for each in targets] == ["F=0.05%", "B=0.5%", "c=1px"]
    assert targets[0].limit(900.0) == pytest.approx(0.45)
    assert targets[2].parameters == ("c_x", "c_y")
    with pytest.raises(ConfigError, match="G"):
        parse_targets("G=1%")
    for wrong in ("F=", "F=-1%", "F=nan", "F=1%,F=2%"):
        with pytest.raises(InputError, match="target"):
            parse_targets(wrong)


def test_targets_are_met_with_certainty_only():
    targets = parse_targets("F=1%,c=1px")
    values = {"F": 100.0, "c_x": 50.0, "c_y": 50.0}
    good = {"F": 0.99 / CERTAIN, "c_x": 0.99 / CERTAIN, "c_y": 0.99 / CERTAIN}
    assert is_met(values, good, targets)
    assert not is_met(values, {**good, "c_y": 1.01 / CERTAIN}, targets)
    assert not is_met(values, {"F": 0.1}, targets)  # c is not known at all


@pytest.fixture(scope="module")
def worth():
    """What further frames are worth after views from one distance, which leave alpha weak."""
    rng = np.random.default_rng(5)
    camera = build_camera("mini").camera
    scene = make_scene(camera, (600.0, 1200.0), 60, 6, rng)
    observations, _ = scene.noisy(0.1, rng)
    found = adjust(
        observations,
        scene.truth,
        camera.pixel_size_mm,
        camera.grid,
        AdjustOptions(distortion="none", tilt="none"),
        distances=cases.distances_of(scene, [(0, 1), (2, 3), (4, 5)], 0.1),
    )
    return Worth(found, camera.grid, 0.9 * camera.grid.radius_px, (2.0, 6.0), 0.001, 1e-4), found


def test_a_frame_adds_information_and_nothing_adds_none(worth):
    judge, found = worth
    first = found.cam_from_world[0]
    moved = first.step(np.array([0.0, 0.0, 0.8, 0.0, 0.0, -150.0]))
    assert judge.measure_gain(moved) > 0.05
    away = RigidTransform.from_rotation_vector([0.0, np.pi, 0.0], [0.0, 0.0, 0.0]) @ first
    assert judge.measure_gain(away) == 0.0
    before, after = judge.before.sigmas(), judge.covary_with(moved).sigmas()
    assert all(after[name] <= before[name] * (1.0 + 1e-9) for name in ("F", "alpha", "B", "c_x"))


def test_advice_is_the_motion_that_helps_the_weakest_parameter(worth):
    judge, found = worth
    pose = found.cam_from_world[0]
    array = found.state.array
    values = {
        "F": array.focal_px,
        "c_x": array.principal_x_px,
        "c_y": array.principal_y_px,
        "B": found.camera.parameters.array_to_sensor_mm,
    }
    sigma = found.covariance.sigmas()["c_x"]
    advice = judge.advise(pose, values, parse_targets(f"F=5%,B=20%,c={sigma}px"))
    assert advice.parameter in ("c_x", "c_y")
    assert advice.motion in MOTIONS
    assert advice.frames >= 1
    assert f"about {advice.frames} more" in advice.text
    distance = float(np.median(pose.apply(judge.state.points_world_mm)[:, 2]))
    sigmas = {}
    for name, (_, step) in MOTIONS.items():
        found_there = judge.covary_with(judge._move(pose, step, distance))
        if found_there is not None:
            sigmas[name] = found_there.sigmas()[advice.parameter]
    assert advice.motion == min(sigmas, key=sigmas.get)
    # targets that are met need no frames, and errors that all frames share leave some unreachable
    assert judge.advise(pose, values, parse_targets("F=5%,c=99px")).frames == 0
    assert judge.advise(pose, values, parse_targets("B=0.0001%")).frames is None


def test_motions_are_what_their_words_say(worth):
    judge, _ = worth
    start = RigidTransform.identity()
    place = {
        name: judge._move(start, step, 1000.0).inverse().translation_mm
        for name, (_, step) in MOTIONS.items()
    }
    assert place["nearer"][2] > 0 > place["farther"][2]
    assert place["left"][0] < 0 < place["right"][0]
    assert place["up"][1] < 0 < place["down"][1]  # y points down
    axis = np.array([[0.0, 0.0, 1000.0]])
    for name in ("left", "right", "up", "down"):
        seen = judge._move(start, MOTIONS[name][1], 1000.0).apply(axis)
        np.testing.assert_allclose(seen[0, :2], 0.0, atol=1e-6)  # looks at the same place
    # the scene's middle moves to the border that is to be filled
    borders = {
        "fill-left": (0, -1),
        "fill-right": (0, 1),
        "fill-top": (1, -1),
        "fill-bottom": (1, 1),
    }
    for name, (axis_index, sign) in borders.items():
        seen = judge._move(start, MOTIONS[name][1], 1000.0).apply(axis)[0]
        assert sign * seen[axis_index] > 50.0
