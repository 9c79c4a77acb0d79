"""Real recordings of turntables: one that calibrates, and one that must be refused.

They are beside the repository, as compressed video, and take minutes each.
"""

import pytest

from lifcal.calibration import CalibrateOptions
from lifcal.errors import EstimationError
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import open_frames
from lifcal.pipeline.calibration import calibrate_frames

pytestmark = pytest.mark.slow

PIXEL_UM = 5.5


def decode(video, folder, step):
    """Write every `step`-th frame as PNG."""
    av = pytest.importorskip("av")
    with av.open(str(video), format="vvc") as opened:
        for index, frame in enumerate(opened.decode(video=0)):
            if index % step == 0:
                write_png(folder / f"f{index:03d}.png", frame.to_ndarray(format="rgb24"))
    return open_frames([str(folder)])


@pytest.fixture(scope="module")
def recordings(shared_data):
    folder = shared_data / "mpeg-lvc"
    if not folder.is_dir():
        pytest.skip("the real recordings are not here: ../shared/data/mpeg-lvc")
    return folder


def calibrate(recordings, name, video, step, tmp_path, **options):
    frames = decode(recordings / name / video, tmp_path / "raw", step)
    sources = {"grid": None, "white": None, "xml": recordings / name / "calib.xml"}
    return calibrate_frames(
        frames, tmp_path / "out", CalibrateOptions(PIXEL_UM, **options), sources
    )


def test_a_turntable_calibrates_with_a_wrong_hint(recordings, tmp_path):
    found = calibrate(recordings, "Origami", "Origami_qp40.bin", 8, tmp_path, focal_length_mm=16.0)
    assert found.summary["n_registered"] == found.summary["n_frames"] == 38
    focal = found.summary["parameters"]["F"]
    # a lens of 25 mm would be 4545 px; nothing better is known
    assert 4100.0 < focal["value"] < 5000.0
    assert focal["sigma"] < 0.05 * focal["value"]
    for name in ("c_x", "c_y"):
        assert abs(found.summary["parameters"][name]["value"] - 1023.5) < 0.06 * 2048
    assert any("16 mm was given" in reason for reason in found.summary["verdict"]["reasons"])


def test_two_scenes_are_refused(recordings, tmp_path):
    """Figures turn before books and a wall that rest: a quarter of the image."""
    with pytest.raises(EstimationError, match=r"% of the image rests while the rest moves"):
        calibrate(recordings, "Fujita2", "Fujita2_qp36.bin", 12, tmp_path)
