"""What `lifcal depth` is made of, besides what a user sees (tests/cli/test_depth.py)."""

import pytest

from lifcal.errors import DataError, InputError
from lifcal.pipeline.rgbd import RgbdOptions, RgbdRecord, _count_fps, make_file_names


def test_names_for_lists_have_no_spaces():
    assert make_file_names(["a b", "c", "d\te"]) == ["a_b", "c", "d_e"]
    with pytest.raises(DataError, match="a_b"):
        make_file_names(["a b", "a_b"])


def test_options_are_checked():
    with pytest.raises(InputError, match="fps"):
        RgbdOptions(fps=0)
    with pytest.raises(InputError, match="poses"):
        RgbdOptions(mesh=True)


def test_a_new_record_shares_nothing_with_another(tmp_path):
    first = RgbdRecord.open(tmp_path / "a", {"clouds": True})
    first.content["findings"].append("mine")
    second = RgbdRecord.open(tmp_path / "b", {"clouds": False})
    assert second.content["findings"] == []
    assert "cloud" in first.paths("x")
    assert "cloud" not in second.paths("x")
    assert list(second.paths("x"))[-1] == "depth"  # written last: then the frame is done


@pytest.mark.parametrize(
    "change", [{"depth_factor": None}, {"depth_range": [1.0]}, {"frames": {"0": {}}}]
)
def test_a_damaged_record_is_refused(tmp_path, change):
    record = RgbdRecord.open(tmp_path / "a", {"clouds": True})
    record.content |= {"depth_range": [2.0, 4.0], "depth_factor": 5000}
    record.write()
    RgbdRecord.open(tmp_path / "a", {"clouds": True})
    record.content |= change
    record.write()
    with pytest.raises(DataError, match="changed or damaged"):
        RgbdRecord.open(tmp_path / "a", {"clouds": True})


def test_two_recordings_do_not_share_timestamps(tmp_path):
    record = RgbdRecord.open(tmp_path / "a", {"clouds": True})
    record.content["frames"] = {"a": {"timestamp": 0.0}, "b": {"timestamp": 5.0}}
    assert record.set_times({"a": 1.0, "c": 2.0}) == 1
    assert record.content["frames"]["a"]["timestamp"] == 1.0
    with pytest.raises(DataError, match=r"frame b of other raws, with the timestamp of d \(5\)"):
        record.set_times({"a": 0.0, "d": 5.0})


def test_frames_a_second_are_counted():
    assert _count_fps([0.0, 0.1, 0.2, 5.0]) == 10  # a pause does not count
    assert _count_fps([0.0, 4.0, 8.0]) == 1  # a whole number, at least 1
    assert _count_fps([3.0]) == 1
