"""`lifcal evaluate` as a user meets it."""

import json

import pytest

from tests.cli.process import assert_one_line_error, lifcal
from tests.export.cases import exact_case, scaled, write_out, write_truth


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    case = exact_case()
    return write_out(folder / "out", scaled(case, 1.01)), write_truth(folder / "sim", case)


def test_table(folders):
    out, truth = folders
    done = lifcal("evaluate", out, "--truth", truth)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for word in ("f_L", "distortion", " ± ", "/ sigma", "Trajectory:", "SE3", "0.990099", "Depth:"):
        assert word in done.stdout, done.stdout


def test_json(folders):
    out, truth = folders
    done = lifcal("evaluate", out, "--truth", truth / "truth", "--json")
    content = json.loads(done.stdout)
    assert content["trajectory"]["scale"] == pytest.approx(1 / 1.01, rel=1e-9)
    assert content["depth"]["median_percent"] == pytest.approx(1.0, abs=0.1)
    assert content["parameters"][0]["name"] == "f_L"


def test_errors(folders, tmp_path):
    out, truth = folders
    assert_one_line_error(lifcal("evaluate", tmp_path / "no", "--truth", truth), "no such folder")
    assert_one_line_error(lifcal("evaluate", out, "--truth", tmp_path), "no truth here")
    assert lifcal("evaluate", out).returncode == 2
