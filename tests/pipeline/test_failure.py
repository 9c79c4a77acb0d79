"""What a calibration that failed leaves in its folder."""

import json

import numpy as np
import pytest

from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError
from lifcal.imaging.frames import ArrayFrames
from lifcal.pipeline.failure import FailureReport, explain_failures
from lifcal.pipeline.grids import GridNotShownError
from tests.pipeline.cases import make_dots

FRAMES = ArrayFrames([make_dots(), make_dots()])


def fail(folder, error, force=False):
    report = FailureReport(folder, FRAMES, force)
    report.findings.append(Finding.of("grid-moved", "the grid moved"))
    with pytest.raises(type(error)) as caught, report.watch():
        raise error
    return getattr(caught.value, "__notes__", [])


def test_it_leaves_a_summary_and_a_page(tmp_path):
    notes = fail(tmp_path, EstimationError("no lattice was found", stage="grid"))
    assert notes == [f"{tmp_path / 'report.html'} shows what was seen"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdict"]["level"] == "failed"
    assert summary["findings"][0]["code"] == "grid-moved"
    assert list(summary["pictures"]) == ["First raw frame"]
    assert "no lattice was found" in (tmp_path / "report.html").read_text()


def test_a_wrong_file_is_no_failure_of_the_recording(tmp_path):
    assert fail(tmp_path, DataError("grid.json: no such file")) == []
    assert list(tmp_path.iterdir()) == []
    # unlike images that can be read and do not show the grid
    assert fail(tmp_path, GridNotShownError("0.png: no micro-lens pattern")) != []
    assert json.loads((tmp_path / "summary.json").read_text())["stage"] == "grid"


def test_a_finished_calibration_stays(tmp_path):
    for name in ("camera.json", "summary.json", "report.html"):
        (tmp_path / name).write_text("old")
    assert fail(tmp_path, EstimationError("x", stage="grid")) == []
    assert (tmp_path / "report.html").read_text() == "old"
    # unless it was kept elsewhere before
    fail(tmp_path, EstimationError("x", stage="grid"), force=True)
    assert not (tmp_path / "camera.json").exists()
    assert "No calibration" in (tmp_path / "report.html").read_text()


def test_a_full_disk_does_not_hide_the_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert fail(tmp_path / "file", EstimationError("x", stage="grid")) == []


def test_motion_explains_errors():
    turned = Finding.of("turned-on-the-spot", "the camera only turned")
    error = EstimationError("singular", stage="covariance")
    with pytest.raises(EstimationError, match="What failed: singular"), explain_failures([turned]):
        raise error
    with explain_failures([turned]):
        assert np.pi > 3
