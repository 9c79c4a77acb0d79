"""`lifcal live`: interrupted and continued as if in one go, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.calibration import CalibrateOptions, OnlineOptions
from lifcal.camera import read_camera, write_camera
from lifcal.errors import DataError, EstimationError
from lifcal.imaging.files import write_png
from lifcal.measure import MeasureOptions
from lifcal.pipeline.live_run import run_live
from tests.cli.process import assert_one_line_error

FRAMES = 6


@pytest.fixture(scope="module")
def recording(live_recording, tmp_path_factory):
    """Raws of a small camera, its white image, and what an earlier calibration knew of it."""
    folder = tmp_path_factory.mktemp("live")
    write_png(folder / "white.png", live_recording.white_image)
    for index in range(FRAMES):
        write_png(folder / "raw" / f"{index}.png", live_recording.raws[index])
    write_camera(folder / "camera.json", live_recording.known_camera())
    return folder


def run(recording, out, on_update=None, **changes):
    options = CalibrateOptions(17.6, measure=MeasureOptions(points=60))
    online = OnlineOptions(points=60, lag=2, targets="F=0.02%")
    sources = {"grid": None, "white": recording / "white.png", "xml": None}
    return run_live(
        str(recording / "raw"),
        out,
        options,
        replace(online, **changes),
        sources,
        camera=recording / "camera.json",
        idle_s=0.4,
        on_update=on_update,
    )


class Stopper:
    """Interrupts a run after some frames."""

    def __init__(self, after):
        self.after, self.names = after, []

    def __call__(self, live, update):
        self.names.append(update.name)
        if len(self.names) == self.after:
            raise KeyboardInterrupt


def test_interrupted_and_continued_as_in_one_go(recording, tmp_path):
    with pytest.raises(EstimationError, match="no camera is known yet"):
        run(recording, tmp_path / "stopped", Stopper(2))
    later = Stopper(3)
    found, ended = run(recording, tmp_path / "stopped", later)
    assert isinstance(ended, KeyboardInterrupt)
    assert later.names == ["2", "3", "4"]
    assert found.summary["provenance"]["frames"] == 5
    for name in ("camera.json", "poses.txt", "points.ply", "summary.json", "report.html"):
        assert (tmp_path / "stopped" / name).is_file()
    assert "online-sigmas" in found.summary["verdict"]["codes"]  # never called good
    again, ended = run(recording, tmp_path / "stopped")
    assert ended is None
    whole, _ = run(recording, tmp_path / "whole")
    np.testing.assert_array_equal(
        again.adjustment.state.as_vector(), whole.adjustment.state.as_vector()
    )
    assert again.summary["provenance"]["statuses"] == whole.summary["provenance"]["statuses"]
    camera = read_camera(tmp_path / "stopped" / "camera.json")
    earlier = read_camera(recording / "camera.json")
    sigma = np.sqrt(camera.covariance[0, 0])
    assert sigma < 1.9
    assert abs(camera.array.focal_px - earlier.array.focal_px) < 4.0 * sigma
    lines = (tmp_path / "stopped" / "live" / "frames.jsonl").read_text().splitlines()
    assert len(lines) == FRAMES
    with pytest.raises(DataError, match=r"holds another run of lifcal live \(other online\)"):
        run(recording, tmp_path / "stopped", window=9)


def test_other_results_are_not_touched(recording, tmp_path):
    (tmp_path / "camera.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds another calibration \(camera.json\)"):
        run(recording, tmp_path)


def test_mistakes_are_told_in_one_line(here, recording, tmp_path):
    out = tmp_path / "out"
    common = ("--pixel-size-um", 17.6, "-o", out)
    assert_one_line_error(here("live", "nothing", *common), "no such folder or video")
    assert_one_line_error(here("live", 97, *common), "camera 97", "no such camera")
    assert_one_line_error(here("live", "-", *common), "give --grid, --white or --camera")
    wrong = here("live", recording / "raw", "--target", "G=1%", *common)
    assert_one_line_error(wrong, "G")
    missing = here("live", recording / "raw", "--camera", tmp_path / "no.json", *common)
    assert_one_line_error(missing, "no.json")
    assert not out.exists()
    (tmp_path / "empty").mkdir()
    empty = here("live", tmp_path / "empty", "--idle", 0.2, *common)
    assert_one_line_error(empty, "no frame came in")


@pytest.fixture
def here(request):
    """Run lifcal in this process, as the tests of the command line do."""
    from tests.cli.conftest import here as run_here

    return run_here.__wrapped__(request.getfixturevalue("capsys"))
