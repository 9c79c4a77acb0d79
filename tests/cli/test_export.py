"""`lifcal export` as a user meets it."""

from dataclasses import replace

import pytest

from lifcal.camera import DivisionDistortion
from tests.cli.process import assert_one_line_error, lifcal
from tests.export.cases import exact_case, write_focused, write_out


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    case = exact_case()
    return write_focused(write_out(tmp_path_factory.mktemp("export"), case), case)


def test_colmap(out, tmp_path):
    done = lifcal("export", out, "--to", "colmap", "-o", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "7 views" in done.stdout
    assert "metres" in done.stdout
    assert "bend of the micro-image centers" in done.stderr
    lines = (tmp_path / "new" / "sparse" / "0" / "cameras.txt").read_text().splitlines()
    assert lines[1].startswith("1 PINHOLE 3")
    assert len(list((tmp_path / "new" / "images").iterdir())) == 7


def test_nerfstudio(out, here, tmp_path):
    done = here("export", out, "--to", "nerfstudio", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"images", "points.ply", "transforms.json"}


@pytest.mark.parametrize(
    ("to", "name"),
    [("opencv", "camera.yml"), ("ros", "camera_info.yaml"), ("kalibr", "camchain.yaml")],
)
def test_a_camera_goes_to_a_file_or_a_folder(out, here, tmp_path, to, name):
    done = here("export", out, "--to", to, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "320 x 240 px at 0.5 of the raw's size, with their distortion" in done.stdout
    done = here("export", out / "camera.json", "--to", to, "-o", tmp_path / "other.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).read_text() == (tmp_path / "other.yaml").read_text()
    done = here("export", out, "--to", to, "--undistorted", "--scale", 1, "-o", tmp_path / "x.yml")
    assert "640 x 480 px at 1 of the raw's size, with no distortion" in done.stdout


def test_a_fit_is_stated(here, tmp_path):
    case = exact_case()
    camera = replace(
        case.camera, distortion=DivisionDistortion(-3e-7), covariance=None, scale_source=None
    )
    out = write_out(tmp_path / "out", replace(case, camera=camera))
    done = here("export", out, "--to", "kalibr", "-o", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "fitted with 4 coefficients, which are at most 0.014 px off" in done.stderr
    done = here("export", out, "--to", "colmap", "--no-images", "-o", tmp_path / "new")
    assert "no scale" in done.stderr
    assert "metres" not in done.stdout
    assert_one_line_error(here("export", out, "--to", "authors", "-o", tmp_path / "two"), "brown")


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


def test_options_of_other_formats_are_refused(out, here, tmp_path):
    for words, text in (
        (("colmap", "--undistorted"), "--undistorted is for opencv, ros, kalibr only"),
        (("authors", "--scale", "1"), "--scale is for"),
        (("ros", "--no-images"), "--no-images is for colmap, nerfstudio only"),
        (("opencv", "-o", tmp_path / "camera.xml"), "written as YAML"),
    ):
        done = here("export", out, "-o", tmp_path / "x", "--to", *words)
        assert_one_line_error(done, text)
