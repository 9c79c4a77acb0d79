"""Files of picked distances: read, checked against raws, continued without loss."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

from lifcal.cli import calibrate as command
from lifcal.distances import (
    DistancesFile,
    PickedDistance,
    check_inside,
    check_picked_distances,
    estimate_sigma_mm,
    find_name,
    read_picked_distances,
)
from lifcal.errors import DataError, InputError
from lifcal.imaging.files import write_png
from lifcal.pipeline import calibrate as lifcal_calibrate
from lifcal.virtual import DepthOptions
from tests.cli.process import HEAVY, assert_one_line_error, lifcal

ONE = PickedDistance("0007", (10.0, 20.25), (110.0, 20.5), 100.0, 0.5)


def test_a_file_is_continued(tmp_path):
    path = tmp_path / "known.txt"
    text = "\ufeff# mine\n\n0007, 1 2 3 4 50 0.1  # the long side\r\nlast 5 6 7 8 60 0.2"
    path.write_bytes(text.encode())
    file = DistancesFile(path)
    assert [line for line, _ in file.read()] == [3, 4]
    file.add(ONE)
    lines = path.read_text().splitlines()
    assert lines[:4] == text[1:].splitlines()
    assert lines[4:] == ["0007 10.00 20.25 110.00 20.50 100 0.5"]
    assert read_picked_distances(path)[2] == ONE
    file.remove(4, file.read()[1][1])
    assert path.read_text().splitlines() == [*text[1:].splitlines()[:3], lines[4]]
    assert list(tmp_path.iterdir()) == [path]


def test_changes_of_others_are_kept(tmp_path):
    file = DistancesFile(tmp_path / "known.txt")
    file.add(ONE)
    (number, first), *_ = file.read()
    with file.path.open("a") as stream:
        stream.write("other 5 6 7 8 60 0.2\n")
    file.add(ONE)
    assert [each.frame for _, each in file.read()] == ["0007", "other", "0007"]
    file.path.write_text("other 5 6 7 8 60 0.2\n" * 3)
    with pytest.raises(InputError, match="was changed meanwhile"):
        file.remove(number, first)
    file.path.write_text("nonsense\n")
    with pytest.raises(DataError, match="line 1"):
        file.add(ONE) or file.read()
    with pytest.raises(DataError, match="line 1: needs 'frame"):
        DistancesFile(file.path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"second_px": (10.5, 20.0)}, "both points are at the same place"),
        ({"first_px": (np.nan, 0.0)}, "not a number"),
        ({"length_mm": -1.0}, "needs positive"),
        ({"sigma_mm": 0.0}, "needs positive"),
    ],
)
def test_what_is_not_written(tmp_path, change, words):
    file = DistancesFile(tmp_path / "known.txt")
    with pytest.raises((DataError, InputError), match=words):
        file.add(PickedDistance(**{**ONE.__dict__, **change}))
    assert not file.path.exists()


def test_names_that_a_line_cannot_hold(tmp_path):
    file = DistancesFile(tmp_path / "known.txt")
    names = ["my frame, #1", "my frame, #2"]
    file.add(PickedDistance(**{**ONE.__dict__, "frame": names[1]}))
    (found,) = read_picked_distances(file.path)
    assert find_name(found.frame, names) == names[1]
    with pytest.raises(DataError, match="there is no frame a_b"):
        find_name("a_b", ["a b", "a,b"])


def test_sigma_of_hands():
    # 0.5 mm for the ruler, and 0.5 px at each of both ends of 100 px for 400 mm
    found = estimate_sigma_mm((0.0, 0.0), (60.0, 80.0), 400.0)
    assert found == pytest.approx(np.hypot(0.5, np.sqrt(0.5) / 100.0 * 400.0))


@pytest.fixture
def raws(tmp_path):
    for name in ("a", "b"):
        write_png(tmp_path / "raw" / f"{name}.png", np.zeros((40, 60), np.uint8))
    return tmp_path / "raw"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a 1 2 3 4 50mm 1", "millimetres as plain numbers, found '50mm'"),
        ("a 1 2 3 4 50 0.1cm", "found '0.1cm'"),
        ("c 1 2 3 4 50 1", "line 2: there is no frame c; frames are a, b"),
        ("b 1 2 29.6 4 50 1", "line 2: the picked point (29.6, 4) is outside"),
        ("0 1 2 3 -0.6 50 1", "which has 30 x 20 px"),
        ("a 1 2 1 2 50 1", "line 2: both points are at (1, 2)"),
        ("a 1 2 3 4 50", "line 2: needs 'frame x1 y1 x2 y2 mm sigma'"),
    ],
)
def test_checked_before_the_work(raws, tmp_path, line, words):
    path = tmp_path / "known.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(DataError) as caught:
        check_picked_distances(path, sorted(raws.iterdir()), 0.5)
    assert words in str(caught.value)


def test_what_fits_passes(raws, tmp_path):
    path = tmp_path / "known.txt"
    path.write_text("a -0.5 0 29.5 19.5 50 1\nb.png 1 2 3 4 50 1\n1 1 2 3 4 50 1\n")
    check_picked_distances(path, sorted(raws.iterdir()), 0.5)
    path.write_text("video_000012 1 2 3 4 50 1\n")
    check_picked_distances(path, [tmp_path / "video.mp4"], 0.5)  # not opened: told later
    check_inside([ONE], (240, 80), 0.5)
    with pytest.raises(DataError, match=r"^the picked point \(110, 20.5\) is outside"):
        check_inside([ONE], (200, 80), 0.5)


def test_the_command_says_so_at_once(raws, tmp_path):
    path = tmp_path / "known.txt"
    path.write_text("a 1 2 100 4 50 1\n")
    done = lifcal(
        *("calibrate", raws, "--pixel-size-um", 5.5, "--distances", path, "-o", tmp_path / "out")
    )
    assert_one_line_error(done, "line 1", "is outside the focused image of frame a")
    assert not (tmp_path / "out").exists()


def test_the_function_says_so_too(tmp_path):
    path = tmp_path / "known.txt"
    path.write_text("1 1 2 100 4 50 1\n")
    frames = [np.zeros((40, 60), np.uint8)] * 2
    with pytest.raises(DataError, match=r"the picked point .* is outside the focused image"):
        lifcal_calibrate(frames, tmp_path / "out", pixel_size_um=5.5, distances=path)
    assert not (tmp_path / "out").exists()


def test_the_check_is_light():
    code = (
        "import sys, lifcal.cli.calibrate, lifcal.distances\n"
        f"heavy = set({HEAVY}) & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_knows_the_scale():
    usual = inspect.signature(DepthOptions).parameters["scale"].default
    assert command._find_scale([]) == usual
    assert command._find_scale(["depth.scale=0.75"]) == 0.75


def test_a_number_is_no_index_among_numbered_frames():
    """A distance picked in frame 0005 must not be measured in the sixth of the frames left."""
    with pytest.raises(DataError, match="there is no frame 0005"):
        find_name("0005", [f"{number:04d}" for number in range(0, 20, 2)])
    with pytest.raises(DataError, match="there is no frame 5"):
        find_name("5", [str(number) for number in range(0, 20, 2)])
    assert find_name("1", ["a", "b"]) == "b"
    assert find_name("1", ["0003", "0005"]) == "0005"
