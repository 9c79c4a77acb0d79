"""Which frames are used: those asked for, and of a video those that show something new."""

import cv2
import numpy as np
import pytest

from lifcal.calibration import CalibrateOptions
from lifcal.errors import DataError, InputError
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import open_frames
from lifcal.listener import Listener
from lifcal.pipeline.choice import MOST_OF_A_VIDEO, FrameChoice, choose_informative
from lifcal.scale import PickedDistance, ScaleOptions

NAMES = [f"{index:04d}" for index in range(10)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (FrameChoice(), [*range(10)]),
        (FrameChoice(every=3), [0, 3, 6, 9]),
        (FrameChoice(every=2, ends=(3, 7)), [3, 5, 7]),
        (FrameChoice(exclude=("0003", "0005.png")), [0, 1, 2, 4, 6, 7, 8, 9]),
        (FrameChoice(exclude=("0003, 0005",), ends=(3, 6)), [4, 6]),
        (FrameChoice(exclude=("000[0-7]",)), [8, 9]),
        (FrameChoice(every=2, exclude=("*2", "*8")), [0, 4, 6]),
    ],
)
def test_frames_that_are_asked_for(choice, expected):
    assert choice.list_indices(NAMES) == expected


def test_what_is_not_there_is_said():
    with pytest.raises(InputError, match="there are frames 0 to 9"):
        FrameChoice(ends=(5, 10)).list_indices(NAMES)
    with pytest.raises(InputError, match="the first is after the last"):
        FrameChoice(ends=(5, 4))
    with pytest.raises(InputError, match="--every is 0"):
        FrameChoice(every=0)
    with pytest.raises(InputError, match=r"--exclude 0030: there is no such frame; there is 00"):
        FrameChoice(exclude=("0030",)).list_indices(NAMES)
    with pytest.raises(InputError, match="no frame is left"):
        FrameChoice(exclude=("*",)).list_indices(NAMES)


def test_a_frame_keeps_its_time():
    options = CalibrateOptions(5.5)
    assert options.select_frames(range(4), 4).timestamps is None
    assert options.select_frames([1, 3], 4).timestamps == (1.0, 3.0)
    timed = CalibrateOptions(5.5, timestamps=(5.0, 6.0, 7.0, 8.0))
    assert timed.select_frames([1, 3], 4).timestamps == (6.0, 8.0)
    with pytest.raises(DataError, match="4 timestamps for 10 frames"):
        timed.for_frames(NAMES)


def test_a_distance_is_of_a_frame_of_the_whole_recording():
    def picked(frame):
        distances = (PickedDistance(frame, (1.0, 1.0), (5.0, 5.0), 30.0, 0.1),)
        options = CalibrateOptions(5.5, scale=ScaleOptions(distances=distances))
        return options.for_frames(NAMES).scale.distances[0].frame

    assert picked("7") == "0007"
    assert picked("0007.png") == "0007"
    with pytest.raises(DataError, match="there is no frame 12"):
        picked("12")


SIZE = (128, 96)
REST = 60
MOVING = 90


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """The camera rests, then moves; every third frame of the motion is blurred."""
    rng = np.random.default_rng(1)
    scene = cv2.GaussianBlur(rng.normal(size=(96, 400)), (0, 0), 2.0)
    scene = np.clip(128 + 50 * scene / scene.std(), 0, 255)
    rows, cols = np.indices((96, 128))
    lenses = 0.6 + 0.4 * np.cos(rows / 2.0) * np.cos(cols / 2.0)  # stay where they are
    path = tmp_path_factory.mktemp("video") / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, SIZE)
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no videos")
    for index in range(REST + MOVING):
        shift = 3 * max(index - REST, 0)
        image = scene[:, shift : shift + 128]
        if index > REST and index % 3 == 0:
            image = cv2.blur(image, (9, 1))
        raw = np.clip(image * lenses, 0, 255).astype(np.uint8)
        writer.write(np.repeat(raw[:, :, None], 3, axis=2))
    writer.release()
    return path


class Told(Listener):
    """Keeps what it is told."""

    def __init__(self):
        self.findings = []

    def finding(self, finding):
        self.findings.append(finding)


def test_a_video_is_thinned_to_what_is_new(video):
    frames, told = open_frames(video), Told()
    assert frames.has_video
    indices, findings = choose_informative(frames, FrameChoice(), told)
    assert told.findings == findings
    assert findings[0].code == "frames-thinned"
    assert f"{len(indices)} of the {REST + MOVING} frames" in findings[0].text
    assert 0.7 * MOST_OF_A_VIDEO <= len(indices) <= MOST_OF_A_VIDEO
    assert indices == sorted(set(indices))
    # one or two of the frames that are all the same
    assert sum(index < REST for index in indices) <= 3
    assert np.mean([index % 3 == 0 for index in indices if index > REST]) < 0.15
    assert np.diff(indices)[2:].max() <= 5  # no gap in the motion


def test_who_says_how_many_gets_them(video):
    frames = open_frames(video)
    for choice, count in ((FrameChoice(every=1), 150), (FrameChoice(ends=(0, 59)), 60)):
        indices, findings = choose_informative(frames, choice, Listener())
        assert len(indices) == count
        assert not findings


def test_images_are_not_thinned(tmp_path):
    for index in range(MOST_OF_A_VIDEO + 2):
        write_png(tmp_path / f"{index}.png", np.full((8, 8), 50 + index, np.uint8))
    frames = open_frames(tmp_path)
    assert not frames.has_video
    indices, findings = choose_informative(frames, FrameChoice(), Listener())
    assert (len(indices), findings) == (MOST_OF_A_VIDEO + 2, [])


def test_a_white_image_among_the_raws_is_not_a_frame(tmp_path, rng):
    for name in ("a", "b", "white"):
        write_png(tmp_path / f"{name}.png", rng.integers(10, 200, (8, 8)).astype(np.uint8))
    copy = tmp_path / "elsewhere" / "w.png"
    copy.parent.mkdir()
    copy.write_bytes((tmp_path / "white.png").read_bytes())
    for white in (tmp_path / "white.png", str(copy)):
        assert open_frames(tmp_path, white=white).names == ("a", "b")
    assert len(open_frames(tmp_path)) == 3
    # alone it is: a command that needs frames says what it is
    assert len(open_frames(tmp_path / "white.png", white=tmp_path / "white.png")) == 1
