"""`lifcal export` as a user meets it."""

from dataclasses import replace

import pytest

from lifcal.camera import DivisionDistortion
from tests.cli.process import assert_one_line_error, lifcal
from tests.export.cases import exact_case, write_out


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return write_out(tmp_path_factory.mktemp("export"), exact_case())


def test_colmap(out, tmp_path):
    done = lifcal("export", out, "--to", "colmap", "-o", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "7 views" in done.stdout
    assert "focused" in done.stderr
    assert "fitted" not in done.stderr
    assert (tmp_path / "new" / "cameras.txt").read_text().splitlines()[1].startswith("1 OPENCV 320")


def test_a_fit_is_stated(tmp_path):
    case = exact_case()
    camera = replace(
        case.camera, distortion=DivisionDistortion(-3e-7), covariance=None, scale_source=None
    )
    out = write_out(tmp_path / "out", replace(case, camera=camera))
    done = lifcal("export", out, "--to", "colmap", "-o", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "no scale" in done.stderr
    assert_one_line_error(lifcal("export", out, "--to", "authors", "-o", tmp_path / "two"), "brown")


def test_authors(out, tmp_path):
    done = lifcal("export", out, "--to", "authors", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "CameraModel.xml",
        "ExtrinsicOrientations.txt",
        "objectCoordinates.ply",
        "rawImagePoints.csv",
    }


def test_errors(out, tmp_path):
    done = lifcal("export", out, "--to", "colmab", "-o", tmp_path)
    assert_one_line_error(done, "Did you mean 'colmap'?")
    done = lifcal("export", tmp_path, "--to", "colmap", "-o", tmp_path / "x")
    assert_one_line_error(done, "camera.json: no such file")
    (tmp_path / "file").write_text("")
    done = lifcal("export", out, "--to", "colmap", "-o", tmp_path / "file")
    assert_one_line_error(done, "is a file")
    assert lifcal("export", out).returncode == 2
