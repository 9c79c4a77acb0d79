"""What `lifcal depth` is made of, besides what a user sees (tests/cli/test_depth.py)."""

import pytest

from lifcal.errors import DataError, InputError
from lifcal.files import write_json
from lifcal.pipeline.rgbd import (
    RgbdEntry,
    RgbdOptions,
    RgbdSetup,
    _count_fps,
    open_store,
    set_times,
)


def test_options_are_checked():
    with pytest.raises(InputError, match="fps"):
        RgbdOptions(fps=0)
    with pytest.raises(InputError, match="poses"):
        RgbdOptions(mesh=True)


SETUP = RgbdSetup((2.0, 4.0), 5000, 50000, {"width": 4, "height": 3})


def test_clouds_are_files_only_if_they_are_asked_for(tmp_path):
    assert "cloud" in open_store(tmp_path / "a", {"clouds": True}).images.paths("x")
    paths = open_store(tmp_path / "b", {"clouds": False}).images.paths("x")
    assert "cloud" not in paths
    assert list(paths)[-1] == "depth"  # written last: then the frame is done


@pytest.mark.parametrize(
    "change",
    [{"depth_factor": None}, {"depth_range": [1.0]}, {"frames": {"0": {}}}, {"findings": [1]}],
)
def test_a_damaged_record_is_refused(tmp_path, change):
    store = open_store(tmp_path / "a", {"clouds": True})
    content = {**store.as_dict(), **SETUP.as_dict()}
    write_json(store.path, content)
    assert open_store(tmp_path / "a", {"clouds": True}).setup == SETUP
    write_json(store.path, {**content, **change})
    with pytest.raises(DataError, match="changed or damaged"):
        open_store(tmp_path / "a", {"clouds": True})


def test_two_recordings_do_not_share_timestamps(tmp_path):
    tmp_path.joinpath("a").mkdir()
    store = open_store(tmp_path / "a", {"clouds": True})
    for name, time in (("a", 0.0), ("b", 5.0)):
        store.add(name, RgbdEntry(f"{name}.png", "0", 1, 0.5, time, None, None, None))
    assert set_times(store, {"a": 1.0, "c": 2.0}) == 1
    assert store.entries["a"].timestamp == 1.0
    with pytest.raises(DataError, match=r"frame b of other raws, with the timestamp of d \(5\)"):
        set_times(store, {"a": 0.0, "d": 5.0})


def test_frames_a_second_are_counted():
    assert _count_fps([0.0, 0.1, 0.2, 5.0]) == 10  # a pause does not count
    assert _count_fps([0.0, 4.0, 8.0]) == 1  # a whole number, at least 1
    assert _count_fps([3.0]) == 1
