"""`lifcal calibrate` as a user meets it, where it ends early; see tests/pipeline for the rest."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import read_grid, write_grid
from lifcal.imaging.files import read_image, write_png
from lifcal.simulate import Simulation, SimulationOptions
from tests.cli.process import assert_one_line_error, lifcal, read_help


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Two raws, their grid and a white image."""
    folder = tmp_path_factory.mktemp("calibrate")
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=2, rays_per_pixel=2)
    )
    write_grid(folder / "grid.json", simulation.optics.camera.grid)
    write_png(folder / "white.png", simulation.render_white())
    for index in range(2):
        write_png(folder / "raw" / f"{index}.png", simulation.render_frame(index).raw)
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--pixel-size-um", 0.01), "pixel size is 0.01 um, needs 0.5 to 50"),
        (("--pixel-size-um", 500), "pixel size is 500.0 um"),
        (("--pixel-size-um", "nan"), "pixel size is nan"),
        (("--known", "f_L=16.7"), "both f_L and B"),
        (("--known", "f_L=16.7,B=thick"), "or f_L=16.748,B=0.376"),
        (("--known", "16.7"), "or f_L=16.748,B=0.376"),
        (("--known", "f_L=16.7,B=0.4,B=0.5"), "B is there twice"),
        (("--known", ""), "or f_L=16.748,B=0.376"),
        (("--known", "f_L=16.7,B=-1"), "known B is -1"),
        (("--known", "f_L=16.7,b=1"), "unknown parameter of --known 'b'"),
        (("--known", "f_L=16.7,B=0.4", "--marker-size-mm", 40), "leave out markers"),
        (("--known", "none.json"), "none.json: no such file"),
        (("--known", "B=none.json"), "none.json: no such file"),
        (("--known", "f_L=none.json,B=0.4"), "one camera file, or all of them are numbers"),
        (("--marker-size-mm", 0), "marker_size_mm is 0"),
        (("--focal-length-mm", -16), "focal length is -16"),
        (("--trajectory-sigma-mm", 0), "trajectory_sigma_mm is 0"),
        (("--points", 3), "points is 3, needs 50 or more"),
        (("--seed", -1), "seed is -1"),
        (("--matching", "random"), "'random'"),
        (("--grid", __file__, "--xml", __file__), "give only one"),
        (("--bayer", "rgb"), "Bayer pattern"),
        (("--loss", "cauchi"), "Did you mean 'cauchy'?"),
        (("--set", "measure.windowpx=4"), "Did you mean 'measure.window_px'?"),
        (("--set", "measure.window_px=wide"), "measure.window_px is 'wide', needs a number"),
        (("--set", "rounds"), "needs NAME=VALUE"),
        (("--set", "rounds=2", "--set", "rounds=3"), "rounds is there twice"),
    ],
)
def test_wrong_options_are_one_line(recording, here, tmp_path, words, expected):
    out = tmp_path / "out"
    raws = recording / "raw"
    done = here("calibrate", raws, "--pixel-size-um", 17.6, *words, "-o", out)
    assert_one_line_error(done, expected)
    assert not out.exists()


@pytest.mark.parametrize("option", ["--distances", "--marker-distances"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        ("", "holds no distances"),
        ("1 2 3\n", "line 1"),
        ("# fine\n1 2 three 4 5 6 7\n", "line 2"),
    ],
)
def test_a_bad_distances_file_is_one_line(recording, here, tmp_path, option, content, expected):
    path, out = tmp_path / "distances.txt", tmp_path / "out"
    if content is not None:
        path.write_text(content)
    done = here("calibrate", recording / "raw", "--pixel-size-um", 17.6, option, path, "-o", out)
    assert_one_line_error(done, "distances.txt: ", expected)
    assert not out.exists()


def test_files_that_are_not_there_or_not_right(recording, here, tmp_path):
    out = tmp_path / "out"
    raw, white = recording / "raw" / "0.png", recording / "white.png"
    write_png(tmp_path / "small.png", read_image(white)[:300])
    (tmp_path / "empty").mkdir()
    size = ("--pixel-size-um", 17.6)
    for words, expected in (
        ((tmp_path / "no.png",), "no.png: no such file"),
        ((raw, tmp_path / "no.png"), "no.png: no such file"),
        ((tmp_path / "empty",), "empty"),
        ((raw, "--white", tmp_path / "no.png"), "no.png: no such file"),
        ((raw, "--white", tmp_path / "small.png"), "640 x 300 px, the raws have 640 x 480 px"),
        ((raw, "--grid", tmp_path / "no.json"), "no.json: no such file"),
    ):
        assert_one_line_error(here("calibrate", *words, *size, "-o", out), expected)
    assert not out.exists()
    (tmp_path / "file").write_text("")
    done = here("calibrate", raw, *size, "-o", tmp_path / "file")
    assert_one_line_error(done, "is a file")


@pytest.mark.parametrize("case", ["no white image", "no lattice in one raw", "another grid"])
def test_images_without_the_grid_leave_a_page(recording, here, tmp_path, rng, case):
    raw = recording / "raw" / "0.png"
    words, expected = (raw, "--white", raw), "not a white image"
    if case == "no lattice in one raw":
        write_png(tmp_path / "noise.png", rng.integers(20, 200, (240, 320)).astype(np.uint8))
        words, expected = (tmp_path / "noise.png",), "no micro-lens pattern"
    elif case == "another grid":
        grid = read_grid(recording / "grid.json")
        wide = replace(grid.lattice, basis_px=1.2 * grid.lattice.basis_px)
        write_grid(tmp_path / "other.json", grid.on_lattice(wide, grid.bend))
        words, expected = (raw, "--grid", tmp_path / "other.json"), "not the grid of these raws"
    out = tmp_path / "out"
    done = here("calibrate", *words, "--pixel-size-um", 17.6, "-o", out)
    assert_one_line_error(done, expected, "report.html shows what")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["verdict"]["level"], summary["stage"]) == ("failed", "grid")
    assert expected in (out / "report.html").read_text()


def test_too_few_frames_are_one_line(recording, tmp_path):
    """In a process of its own: nothing else may be said, by whatever library."""
    done = lifcal(
        "calibrate",
        recording / "raw",
        *("--pixel-size-um", 17.6, "-o", tmp_path / "out"),
        *("--white", recording / "white.png", "--grid", recording / "grid.json"),
    )
    assert_one_line_error(done, "2 usable frames are too few (need 5)", "report.html shows what")
    assert not (tmp_path / "out" / "camera.json").exists()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["verdict"]["level"] == "failed"
    assert "2 usable frames are too few" in summary["verdict"]["text"]
    assert summary["n_frames"] == summary["n_focused"] == 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<img ") == 3  # two focused images and a depth map
    assert "2 usable frames are too few (need 5)" in page


def test_usage():
    assert lifcal("calibrate").returncode == 2
    assert lifcal("calibrate", "raw", "-o", "out").returncode == 2
    assert lifcal("calibrate", "raw", "-o", "out", "--pixel-size-um", "big").returncode == 2


def test_help_imports_nothing_heavy():
    text = read_help("calibrate")
    for word in (
        "RAWS",
        "--jobs",
        "--scheduler",
        "--pixel-size-um",
        "--marker-size-mm",
        "--known",
        "--trajectory",
        "Scale",
    ):
        assert word in text
