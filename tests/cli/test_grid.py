"""`lifcal grid` as a user meets it."""

import json

import cv2
import numpy as np
import pytest

from benchmarks.grid import center_error_px, make_optics, make_white
from lifcal.camera import read_grid, write_grid
from lifcal.imaging.files import read_image, write_png
from lifcal.simulate import Simulation, SimulationOptions
from tests.cli.process import assert_one_line_error, lifcal


@pytest.fixture(scope="module")
def white(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    optics = make_optics("hexagonal-rows", 0.01, (2.5, 3.1, 4.2), size=(380, 300), pitch_px=14.3)
    path = folder / "white.png"
    write_png(path, make_white(optics, 8, np.random.default_rng(3)))
    return path, optics.camera.grid


def test_white_image(white, tmp_path):
    path, truth = white
    out = tmp_path / "new" / "grid.json"
    done = lifcal("grid", path, "-o", out)
    assert done.returncode == 0, done.stderr
    for word in ("white image", "hexagonal", "pitch", "residual rms", "main disc", "lens types"):
        assert word in done.stdout, done.stdout
    grid = read_grid(out)
    assert center_error_px(grid, truth) < 0.01
    assert grid.n_types == 3
    assert grid.discs is not None
    content = json.loads(out.read_text())
    assert {"origin_px", "basis_px", "radius_px", "types", "overlap_discs"} <= set(content)
    picture = read_image(out.with_name(f"{out.stem}_fit.png"))
    assert picture.ndim == 3
    assert min(picture.shape[:2]) > 600


def test_scene_frames(tmp_path):
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=4, rays_per_pixel=2)
    )
    truth = simulation.optics.camera.grid
    for index in range(3):
        write_png(tmp_path / "raw" / f"{index}.png", simulation.render_frame(index).raw)
    done = lifcal("grid", tmp_path / "raw", "-o", tmp_path / "grid.json", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["source"] == "scene frames"
    assert content["types"] == 3
    assert content["unreadable_frames"] == 0
    assert center_error_px(read_grid(tmp_path / "grid.json"), truth) < 0.05
    # One frame alone is told from a white image.
    one = lifcal("grid", tmp_path / "raw/1.png", "-o", tmp_path / "one.json")
    assert "one scene frame" in one.stdout
    # Frames that cannot be read are named, the others are used, the exit code tells.
    (tmp_path / "raw/1.png").write_bytes(b"broken")
    done = lifcal("grid", tmp_path / "raw", "-o", tmp_path / "two.json")
    assert done.returncode == 1
    assert "1.png: not an image" in done.stderr
    assert center_error_px(read_grid(tmp_path / "two.json"), truth) < 0.05
    # A grid to start from keeps its types.
    start = tmp_path / "start.json"
    write_grid(start, truth)
    done = lifcal(
        "grid", tmp_path / "raw/0.png", "--xml", start, "-o", tmp_path / "moved.json", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert read_grid(tmp_path / "moved.json").lattice.type_rule == truth.lattice.type_rule
    assert "the grid moved by" in done.stderr


def test_errors_are_one_line(white, tmp_path):
    path, _ = white
    out = tmp_path / "grid.json"
    photo = tmp_path / "photo.png"
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (300, 400), dtype=np.uint8)
    cv2.imwrite(str(photo), cv2.GaussianBlur(noise, (0, 0), 2))
    assert_one_line_error(lifcal("grid", photo, "-o", out), "photo.png", "no micro-lens pattern")
    assert_one_line_error(lifcal("grid", tmp_path / "no.png", "-o", out), "no.png: no such file")
    assert_one_line_error(lifcal("grid", path, "-o", tmp_path / "grid.txt"), "written as .json")
    assert_one_line_error(lifcal("grid", path, "--bayer", "rgb", "-o", out), "Bayer pattern")
    assert_one_line_error(lifcal("grid", path, "--xml", photo, "-o", out), "photo.png")
    assert not out.exists()
    assert lifcal("grid", path).returncode == 2


def test_the_images_given_stay(white, tmp_path):
    path, _ = white
    mine = tmp_path / "white.png"
    mine.write_bytes(path.read_bytes())
    done = lifcal("grid", mine, "-o", tmp_path / "white.json")
    assert done.returncode == 0, done.stderr
    assert mine.read_bytes() == path.read_bytes()
    named = tmp_path / "a_fit.png"
    named.write_bytes(path.read_bytes())
    assert_one_line_error(lifcal("grid", named, "-o", tmp_path / "a.json"), "is one of the images")


@pytest.mark.parametrize("pitch_px", [11.0, 17.2, 23.2])
def test_a_start_of_another_camera_is_refused(white, tmp_path, pitch_px):
    from lifcal.camera import Lattice, MicroLensGrid

    path, truth = white
    lattice = Lattice.regular("hexagonal-rows", pitch_px, (190.0, 150.0))
    start = tmp_path / "start.json"
    write_grid(start, MicroLensGrid.from_lattice(lattice, truth.image_size))
    out = tmp_path / "grid.json"
    assert_one_line_error(lifcal("grid", path, "--xml", start, "-o", out), "white.png")
    assert not out.exists()
