"""`lifcal live`: interrupted and continued as if in one go, and what it refuses."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from lifcal.calibration import CalibrateOptions, OnlineOptions
from lifcal.camera import read_camera, write_camera
from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError
from lifcal.imaging.files import write_png
from lifcal.measure import MeasureOptions
from lifcal.pipeline.live_run import _read_engine, _write_engine, run_live
from lifcal.virtual import DepthOptions
from tests.cli.process import assert_one_line_error

FRAMES = 6
SMALL = "0_small"
"""Frame after the first whose size is not that of the others."""


@pytest.fixture(scope="module")
def recording(live_recording, tmp_path_factory):
    """Raws of a small camera, its white image, and what an earlier calibration knew of it."""
    folder = tmp_path_factory.mktemp("live")
    write_png(folder / "white.png", live_recording.white_image)
    for index in range(FRAMES):
        write_png(folder / "raw" / f"{index}.png", live_recording.raws[index])
    write_png(folder / "raw" / f"{SMALL}.png", live_recording.raws[0][:40, :50])
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
        self.after, self.names, self.run = after, [], None

    def __call__(self, live, update):
        self.run = live
        self.names.append(update.name)
        if len(self.names) == self.after:
            raise KeyboardInterrupt


def test_interrupted_and_continued_as_in_one_go(recording, tmp_path):
    with pytest.raises(EstimationError, match="no camera is known yet"):
        run(recording, tmp_path / "stopped", Stopper(3))
    later = Stopper(3)
    found, ended = run(recording, tmp_path / "stopped", later)
    assert isinstance(ended, KeyboardInterrupt)
    assert later.names == ["2", "3", "4"]
    assert found.summary["provenance"]["frames"] == 6
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
    # what was noticed before an interruption is not forgotten
    assert again.summary["findings"] == whole.summary["findings"]
    noticed = [(each["code"], each["evidence"]) for each in again.summary["findings"]]
    assert ("frame-unusable", {"frame": SMALL}) in noticed
    camera = read_camera(tmp_path / "stopped" / "camera.json")
    earlier = read_camera(recording / "camera.json")
    sigma = np.sqrt(camera.covariance[0, 0])
    assert sigma < 1.9
    assert abs(camera.array.focal_px - earlier.array.focal_px) < 4.0 * sigma
    lines = (tmp_path / "stopped" / "live" / "frames.jsonl").read_text().splitlines()
    assert len(lines) == FRAMES + 1
    with pytest.raises(DataError, match=r"holds another run of lifcal live \(other online\)"):
        run(recording, tmp_path / "stopped", window=9)


@pytest.fixture(scope="module")
def stopped(recording, tmp_path_factory):
    """A run that was interrupted after two frames."""
    folder = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(EstimationError):
        run(recording, folder, Stopper(2))
    return folder


@pytest.mark.parametrize(
    "rest",
    ['{"name": "1", "sta', '{"name": "1", "status": "used"}', '{"name": "1", "status": "used"}\n'],
    ids=["part of a line", "line without its end", "line of a frame that is not in the state"],
)
def test_a_killed_run_takes_its_last_frame_again(recording, stopped, tmp_path, rest):
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    log = out / "live" / "frames.jsonl"
    with log.open("a") as stream:
        stream.write(rest)
    later = Stopper(1)
    with pytest.raises(EstimationError):
        run(recording, out, later)
    assert later.names == ["1"]
    assert later.run.names == ["0", SMALL, "1"]
    assert later.run.statuses == ["used", "unusable", "used"]
    assert [finding.code for finding in later.run.findings] == ["frame-unusable", "live-log-cut"]
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["name"] for entry in entries if "name" in entry] == later.run.names
    again = Stopper(1)
    with pytest.raises(EstimationError):
        run(recording, out, again)
    assert again.names == ["2"]
    assert [finding.code for finding in again.run.findings] == ["frame-unusable", "live-log-cut"]


def test_a_damaged_log_is_not_continued(recording, stopped, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    log = out / "live" / "frames.jsonl"
    log.write_text(log.read_text().replace('"status": "unusable"', '"status": "unu'))
    with pytest.raises(DataError, match=r"frames.jsonl: line 2 is damaged.*begin in a new folder"):
        run(recording, out)


def test_what_was_noticed_in_the_grid_is_kept(live_recording, tmp_path):
    finding = Finding.of("bayer-missing", "the raws look like a mosaic", share=0.5)
    grid = live_recording.camera.grid
    _write_engine(tmp_path, grid, None, (2.0, 4.6), {"source": "white image"}, [finding])
    _, figures, findings = _read_engine(tmp_path, DepthOptions(), None)
    assert figures == {"source": "white image"}
    assert findings == [finding]


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
