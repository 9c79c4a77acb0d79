"""`lifcal adjust` as a user meets it."""

import json

import numpy as np
import pytest

from lifcal.camera import read_camera, write_grid
from lifcal.reconstruction import write_observations
from tests.bundle import cases
from tests.cli.process import assert_one_line_error, lifcal

COMMON = ["--pixel-size-um", 17.6, "--image-size", "640x480", "--focal-length-mm", 16]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adjust")
    rng = np.random.default_rng(11)
    scene = cases.small_scene("mini", rng, n_points=50, n_views=8)
    observations, _ = scene.noisy(0.1, rng)
    write_observations(folder / "observations.csv", observations)
    known = scene.distances(5, 0.02, rng)
    lines = [
        f"{i} {j} {mm} {sigma}"
        for (i, j), mm, sigma in zip(
            known.point_ids[:, :, 0], known.lengths_mm, known.sigmas_mm, strict=True
        )
    ]
    (folder / "distances.txt").write_text("# known\n" + "\n".join(lines) + "\n")
    write_grid(folder / "grid.json", scene.camera.grid)
    return folder, scene.camera


def test_with_distances(files, tmp_path):
    folder, truth = files
    out = tmp_path / "new" / "out"
    done = lifcal(
        "adjust",
        folder / "observations.csv",
        *COMMON,
        "--distances",
        folder / "distances.txt",
        "-o",
        out,
    )
    assert done.returncode == 0, done.stderr
    for word in ("f_L", "alpha", "sigma", "residual rms", "Scale: distances", "camera.json"):
        assert word in done.stdout, done.stdout
    assert {path.name for path in out.iterdir()} == {
        "camera.json",
        "poses.txt",
        "points.ply",
        "summary.json",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["verdict"]["level"] in ("good", "usable", "caution")
    assert summary["verdict"]["text"] in done.stdout
    assert " ± " in done.stdout
    camera = read_camera(out / "camera.json")
    sigmas = camera.sigmas()
    pairs = zip(camera.parameters.as_vector(), truth.parameters.as_vector(), strict=True)
    for name, (value, true) in zip(("f_L", "b_L0", "B", "c_x", "c_y"), pairs, strict=True):
        assert abs(value - true) < 5.0 * sigmas[name], name


def test_without_scale_and_with_focus(files, tmp_path):
    folder, truth = files
    done = lifcal(
        "adjust",
        folder / "observations.csv",
        *COMMON,
        "--grid",
        folder / "grid.json",
        "--focus-strength",
        0.0,
        "--focus-sigma",
        0.5,
        "--json",
        "-o",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["scale_source"] is None
    assert "there is no scale" in done.stderr
    assert content["units"]["f_L"] == "no scale"
    assert content["focus"]["shape"] == "linear"
    g = content["parameters"]["g"]
    assert abs(g["value"]) < 4.0 * g["sigma"]
    assert content["parameters"]["F"]["value"] == pytest.approx(truth.array.focal_px, rel=0.02)
    assert read_camera(tmp_path / "camera.json").scale_source is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("center_x", "cx"), "header"),
        (lambda text: text + "1,2,3\n", "values for 8 columns"),
        (lambda text: text + text.splitlines()[5] + "\n", "duplicate"),
        (lambda text: text + "1,2,nan,3,4,5,0,1\n", "finite"),
        (lambda text: "\n".join(text.splitlines()[:40]) + "\n", "view"),
    ],
)
def test_bad_observations(files, tmp_path, change, words):
    folder, _ = files
    path = tmp_path / "bad.csv"
    path.write_text(change((folder / "observations.csv").read_text()))
    out = tmp_path / "out"
    assert_one_line_error(lifcal("adjust", path, *COMMON, "-o", out), words)
    assert not out.exists()


def test_bad_options(files, tmp_path):
    folder, _ = files
    csv, out = folder / "observations.csv", tmp_path / "out"
    rest = ["--focal-length-mm", 16, "-o", out]
    size = ["--pixel-size-um", 17.6, "--image-size"]
    assert_one_line_error(lifcal("adjust", csv, *size, "320x240", *rest), "outside the image")
    assert_one_line_error(lifcal("adjust", csv, *size, "big", *rest), "WIDTHxHEIGHT")
    assert_one_line_error(
        lifcal("adjust", csv, *COMMON, "--loss", "hubert", "-o", out), "hubert", "huber"
    )
    assert_one_line_error(
        lifcal("adjust", csv, *COMMON, "--focus-strength", 0.3, "-o", out), "focal planes"
    )
    assert_one_line_error(
        lifcal("adjust", tmp_path / "none.csv", *COMMON, "-o", out), "no such file"
    )
    bad = tmp_path / "distances.txt"
    bad.write_text("1 2 three 1\n")
    assert_one_line_error(lifcal("adjust", csv, *COMMON, "--distances", bad, "-o", out), "line 1")
    bad.write_text("12345 2 3 1\n")
    assert_one_line_error(
        lifcal("adjust", csv, *COMMON, "--distances", bad, "-o", out), "none of the distances"
    )
