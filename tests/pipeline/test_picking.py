"""Picking in folders of lifcal focus and lifcal calibrate: what is known of a point."""

import json

import numpy as np
import pytest

from lifcal.distances import read_picked_distances
from lifcal.errors import DataError, InputError
from lifcal.imaging.files import decode_image
from lifcal.pipeline.picking import PickFolder
from tests.pipeline import picking_cases as cases

PLACES = [(150.0, 120.0), (210.0, 90.0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pick")
    cases.make_focus_folder(folder)
    return folder


def test_points_in_other_views(folder, tmp_path):
    camera, poses = cases.make_camera(), cases.make_poses()
    picked = PickFolder(folder, tmp_path / "known.txt")
    found = picked.locate(2, PLACES)
    world = cases.look(camera, poses[2], PLACES)
    assert found["length_mm"] == pytest.approx(np.linalg.norm(world[0] - world[1]), rel=0.005)
    for entry, point in zip(found["points"], world, strict=True):
        assert entry["known"] is True
        assert entry["depth_mm"] == pytest.approx(poses[2].apply(point[None])[0, 2], rel=0.005)
        assert [view["frame"] for view in entry["views"]] == [0, 1, 3, 4]
        for view in entry["views"]:
            again = cases.look(camera, poses[view["frame"]], (view["x"], view["y"]))
            # a quarter of a pixel on the wall is 0.5 mm
            np.testing.assert_allclose(again, point, atol=0.5)


def test_two_recordings_whose_frames_have_the_same_times(tmp_path):
    cases.make_focus_folder(tmp_path)
    cases.place_in_worlds(tmp_path, [(0, 2, 4), (1, 3)], [(0.0, 1.0, 2.0), (0.0, 1.0)])
    picked = PickFolder(tmp_path)
    assert picked.describe()["posed"] == [0, 1, 2, 3, 4]
    poses = cases.make_poses()
    for frame, others in ((2, [0, 4]), (3, [1])):
        found = picked.locate(frame, PLACES)
        world = cases.look(cases.make_camera(), poses[frame], PLACES)
        assert found["length_mm"] == pytest.approx(np.linalg.norm(world[0] - world[1]), rel=0.005)
        for entry in found["points"]:  # points are not looked for in the other world
            assert [view["frame"] for view in entry["views"]] == others


def test_poses_that_do_not_belong_to_the_summary(tmp_path):
    cases.make_focus_folder(tmp_path)
    path = tmp_path / "poses.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"poses.txt: 4 poses for 5 frames"):
        PickFolder(tmp_path)


def test_unknown_depth(folder, tmp_path):
    picked = PickFolder(folder, tmp_path / "known.txt")
    found = picked.locate(2, [(20.0, 20.0), PLACES[0]])
    assert [entry["known"] for entry in found["points"]] == [False, True]
    assert found["length_mm"] is None
    mask = decode_image(folder, picked.draw_unknown(2))
    assert mask[:40, :60].min() == 255
    assert mask[45:, :].max() == 0
    with pytest.raises(InputError, match="depth is unknown at point 1"):
        picked.add(2, [(20.0, 20.0), PLACES[0]], 50.0, None)
    assert not picked.file.path.exists()


def test_before_a_calibration(tmp_path):
    cases.make_focus_folder(tmp_path, calibrated=False)
    picked = PickFolder(tmp_path)
    about = picked.describe()
    assert about["posed"] == []
    assert (about["width"], about["height"], about["metric"]) == (320, 240, False)
    found = picked.locate(1, PLACES)
    assert found["length_mm"] is None
    assert [entry["views"] for entry in found["points"]] == [[], []]
    assert all(entry["known"] for entry in found["points"])
    # a folder that was cleaned: it is not known whether depth is known
    for path in (tmp_path / "virtual_depth").iterdir():
        path.unlink()
    assert [entry["known"] for entry in picked.locate(1, PLACES)["points"]] == [None, None]
    picked.add(1, PLACES, 50.0, None)
    assert len(read_picked_distances(tmp_path / "distances.txt")) == 1


def test_without_scale_nothing_is_metric(tmp_path):
    cases.make_focus_folder(tmp_path, scale=None)
    found = PickFolder(tmp_path).locate(2, PLACES)
    assert found["length_mm"] is None
    assert {entry["depth_mm"] for entry in found["points"]} == {None}
    assert len(found["points"][0]["views"]) == 4


def test_distances(folder, tmp_path):
    picked = PickFolder(folder, tmp_path / "known.txt")
    picked.file.path.write_text("elsewhere 1 2 3 4 5 6\n")
    picked.add(2, PLACES, 130.0, None)
    picked.add(0, PLACES, 131.0, 0.25)
    kept, guessed, given = picked.list_distances()
    assert (kept["name"], kept["frame"], kept["line"]) == ("elsewhere", None, 1)
    assert (guessed["frame"], guessed["mm"]) == (2, 130.0)
    assert guessed["sigma"] == pytest.approx(np.hypot(0.5, np.sqrt(0.5) / 67.08 * 130.0), rel=0.01)
    assert (given["frame"], given["sigma"]) == (0, 0.25)
    picked.remove(guessed)
    assert [entry["line"] for entry in picked.list_distances()] == [1, 2]
    with pytest.raises(InputError, match="was changed meanwhile"):
        picked.remove(guessed)  # another distance is on that line by now


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((9, PLACES, 5.0, None), "there is no frame 9"),
        ((-1, PLACES, 5.0, None), "there is no frame -1"),
        ((0, [(1e9, 0.0), PLACES[0]], 5.0, None), "is outside the focused image"),
        ((0, [(float("nan"), 0.0), PLACES[0]], 5.0, None), "is outside the focused image"),
        ((0, PLACES[:1], 5.0, None), "needs two points"),
        ((0, PLACES, 0.0, None), "the distance is 0 mm, needs a positive number"),
        ((0, PLACES, float("inf"), None), "needs a positive number"),
        ((0, PLACES, 5.0, -1.0), "sigma is -1 mm"),
    ],
)
def test_wrong_input(folder, tmp_path, arguments, words):
    picked = PickFolder(folder, tmp_path / "known.txt")
    with pytest.raises(InputError, match=words):
        picked.add(*arguments)
    assert not picked.file.path.exists()


def test_wrong_folders(tmp_path):
    with pytest.raises(DataError, match="not a folder of lifcal focus"):
        PickFolder(tmp_path)
    (tmp_path / "focus.json").write_text("{}")
    with pytest.raises(DataError, match="not as lifcal focus writes it"):
        PickFolder(tmp_path)
    content = {"settings": {"scale": 0.5}, "frames": {"a": {}}}
    (tmp_path / "focus.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="has no focused images"):
        PickFolder(tmp_path)
