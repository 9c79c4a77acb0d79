"""`lifcal focus` as a user meets it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grid import center_error_px
from lifcal.camera import MicroLensGrid, read_grid, write_grid
from lifcal.imaging.files import read_image, write_png
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.virtual import DepthFlag
from tests.cli.process import (
    assert_one_line_error,
    interrupt,
    lifcal,
    limit_file_size,
    read_help,
)

FRAMES = 3
BITS = sum(flag.value for flag in DepthFlag)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Raws, white image, true grid and the true virtual depth of each frame."""
    folder = tmp_path_factory.mktemp("focus")
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=FRAMES, rays_per_pixel=8)
    )
    camera = simulation.optics.camera
    write_grid(folder / "grid.json", camera.grid)
    write_png(folder / "white.png", simulation.render_white())
    truth = {}
    for index in range(FRAMES):
        frame = simulation.render_frame(index)
        write_png(folder / "raw" / f"{index}.png", frame.raw)
        depth = frame.view.depth_mm
        truth[str(index)] = camera.virtual_depth_from_depth(depth.ravel()).reshape(depth.shape)
    return folder, truth, camera.grid


def arguments(folder, out):
    return [
        "focus",
        folder / "raw",
        *("--grid", folder / "grid.json", "--white", folder / "white.png", "-o", out),
    ]


@pytest.fixture(scope="module")
def results(recording, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "new" / "out"
    done = lifcal(*arguments(recording[0], out))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"{FRAMES} frames, virtual depth" in done.stdout
    return out


def median_error(out, truth):
    errors = []
    for name, expected in truth.items():
        found = read_image(out / "virtual_depth" / f"{name}.tiff")
        assert found.shape == expected.shape
        errors.append(float(np.nanmedian(np.abs(found / expected - 1.0))))
    return max(errors)


def times(out):
    return {
        path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix in (".png", ".tiff")
    }


def test_files(recording, results):
    _, truth, grid = recording
    content = json.loads((results / "focus.json").read_text())
    low, high = content["depth_range"]
    assert 1.5 < low < 3.0 < high < 6.0
    assert content["settings"]["scale"] == 0.5
    assert content["grid"]["types"] == 3
    assert content["grid"]["source"] == "file"
    assert list(content["frames"]) == list(truth)
    assert content["failed"] == {}
    np.testing.assert_allclose(
        read_grid(results / "grid.json").centers_raw_px,
        grid.centers_raw_px,
        rtol=0,
        atol=0.00051,  # deviations of single lenses are stored in steps of 0.001 px
    )
    for name in truth:
        maps = results / "virtual_depth"
        u, sigma = read_image(maps / f"{name}.tiff"), read_image(maps / f"{name}_sigma.tiff")
        flags, color = (
            read_image(maps / f"{name}_flags.png"),
            read_image(maps / f"{name}_color.png"),
        )
        focused = read_image(results / "focused" / f"{name}.png")
        assert (u.dtype, sigma.dtype, flags.dtype) == (np.float32, np.float32, np.uint8)
        assert u.shape == sigma.shape == flags.shape == focused.shape == (240, 320)
        assert focused.dtype == color.dtype == np.uint8
        assert color.shape[1:] == (320, 3)
        assert color.shape[0] > 240
        known = np.isfinite(u)
        assert (known == np.isfinite(sigma)).all()
        assert (known == ((flags & ~np.uint8(DepthFlag.OCCLUSION)) == 0)).all()
        assert int(flags.max()) <= BITS
        assert (sigma[known] > 0.0).all()
        figures = content["frames"][name]
        assert figures["known_share"] == pytest.approx(known.mean())
        assert figures["median_u"] == pytest.approx(np.nanmedian(u))
        assert figures["median_sigma"] == pytest.approx(np.nanmedian(sigma))


def test_virtual_depth_and_focused_image_are_right(recording, results):
    folder, truth, _ = recording
    # 0.8 % of u at this pitch of 12.6 px and noise; too good would be a test of something else.
    assert 0.001 < median_error(results, truth) < 0.02
    for name in truth:
        # Linear values as the raw's: in the middle of a micro image white is 1.
        focused = read_image(results / "focused" / f"{name}.png").astype(float)
        raw = read_image(folder / "raw" / f"{name}.png").astype(float)
        assert np.percentile(focused, 90) == pytest.approx(np.percentile(raw, 97), rel=0.25)


def test_the_same_command_again_does_what_is_missing(recording, results, tmp_path):
    folder, _, _ = recording
    out = tmp_path / "out"
    shutil.copytree(results, out)
    before = times(out)
    done = lifcal(*arguments(folder, out))
    assert done.returncode == 0, done.stderr
    assert f"{FRAMES} frames ({FRAMES} of them before)" in done.stdout
    assert times(out) == before
    cut = out / "virtual_depth" / "1.tiff"
    cut.write_bytes(cut.read_bytes()[:1000])
    record = (out / "focus.json").read_text()
    done = lifcal(*arguments(folder, out), "--json")
    assert done.returncode == 0, done.stderr
    assert (out / "focus.json").read_text() == record
    assert json.loads(done.stdout) == json.loads(record)
    assert {path for path, when in times(out).items() if before[path] != when} == {
        out / "focused" / "1.png",
        *((out / "virtual_depth").glob("1*")),
    }
    same = read_image(results / "virtual_depth" / "1.tiff")
    np.testing.assert_array_equal(read_image(out / "virtual_depth" / "1.tiff"), same)


def test_a_folder_in_use_is_kept(recording, results, here, tmp_path):
    folder, _, grid = recording
    before = times(results)
    again = arguments(folder, results)
    for changed, word in (
        ([*again, "--scale", "0.25"], "scale was 0.5, is 0.25"),
        ([*again, "--range", "2", "5"], "range was not given, is 2.0 to 5.0"),
        ([*again[:4], *again[6:]], "with --white"),
    ):
        done = here(*changed)
        assert_one_line_error(done, "made with other settings", word, "Choose another folder")
    write_grid(tmp_path / "other.json", _shifted(grid))
    again[3] = tmp_path / "other.json"
    assert_one_line_error(here(*again), "another --grid file")
    # Raws of the same names.
    shutil.copy(folder / "raw" / "1.png", tmp_path / "0.png")
    again = arguments(folder, results)
    again[1] = tmp_path / "0.png"
    assert_one_line_error(here(*again), "0 is there already, made from another raw")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    content = json.loads((results / "focus.json").read_text())
    (damaged / "focus.json").write_text(json.dumps({**content, "depth_range": None}))
    assert_one_line_error(here(*arguments(folder, damaged)), "was changed or damaged")
    used = tmp_path / "used"
    used.mkdir()
    (used / "thesis.tex").write_text("")
    assert_one_line_error(here(*arguments(folder, used)), "is not empty")
    assert times(results) == before


def test_a_grid_of_another_camera_is_one_line(recording, here, tmp_path):
    folder, _, grid = recording
    own = grid.lattice
    for lattice, why in (
        (replace(own, basis_px=1.4 * own.basis_px), "no micro-lens pattern"),
        (replace(own, origin_px=own.origin_px + 2.0), "px off the grid"),
        (replace(own, origin_px=own.origin_px + own.basis_px[0]), "off by a whole lens"),
    ):
        other = MicroLensGrid.from_lattice(lattice, grid.image_size, discs=grid.discs)
        write_grid(tmp_path / "other.json", other)
        words = arguments(folder, tmp_path / "out")
        words[3] = tmp_path / "other.json"
        words = [*words[:4], *words[6:]]  # without its white image
        assert_one_line_error(here(*words), "other.json: not the grid of these raws", why)


def test_a_grid_that_is_a_little_off_is_moved(recording, here, tmp_path):
    folder, _, grid = recording
    own = grid.lattice
    off = grid.on_lattice(replace(own, origin_px=own.origin_px + np.array([0.3, -0.2])), grid.bend)
    write_grid(tmp_path / "off.json", off)
    words = arguments(folder, tmp_path / "out")
    words[3] = tmp_path / "off.json"
    done = here(*words[:4], *words[6:])  # without its white image
    assert done.returncode == 0, done.stderr
    assert "px to where the raws show it" in " ".join(done.stderr.split())
    found = read_grid(tmp_path / "out" / "grid.json")
    assert center_error_px(found, grid) < 0.06
    assert center_error_px(off, grid) > 0.3


def _shifted(grid):
    from dataclasses import replace

    from lifcal.camera import Lattice, MicroLensGrid

    lattice = replace(grid.lattice, origin_px=grid.lattice.origin_px + 0.3)
    assert isinstance(lattice, Lattice)
    return MicroLensGrid.from_lattice(lattice, grid.image_size, radius_px=grid.radius_px)


BAD = {
    "black.png": "black",
    "saturated.png": "saturated",
    "cut.png": "cut off",
    "size.png": "640 x 400 px",
    "photo.png": "no micro-lens pattern",
    "flat.png": "too little texture",
    "text.png": "not an image",
}


@pytest.fixture(scope="module")
def bad_raws(recording, tmp_path_factory):
    """Two good raws among bad ones of each kind, which are first and last in order."""
    folder, _, _ = recording
    bad = tmp_path_factory.mktemp("bad")
    raw = read_image(folder / "raw" / "0.png")
    shutil.copy(folder / "raw" / "0.png", bad / "good0.png")
    shutil.copy(folder / "raw" / "1.png", bad / "good1.png")
    write_png(bad / "black.png", np.zeros_like(raw))
    write_png(bad / "saturated.png", np.full_like(raw, 255))
    write_png(bad / "size.png", raw[:400])
    shutil.copy(folder / "white.png", bad / "white.png")
    rng = np.random.default_rng(0)
    flat = 0.7 * read_image(folder / "white.png") + rng.normal(0.0, 1.5, raw.shape)
    write_png(bad / "flat.png", np.clip(np.rint(flat), 0, 255).astype(np.uint8))
    content = (folder / "raw" / "1.png").read_bytes()
    (bad / "cut.png").write_bytes(content[: len(content) // 2])
    (bad / "text.png").write_text("no image")
    smooth = np.fft.ifft2(np.fft.fft2(rng.normal(size=raw.shape)) * _low_pass(raw.shape)).real
    photo = 128.0 + 40.0 * smooth / smooth.std()
    write_png(bad / "photo.png", np.clip(photo, 0, 255).astype(np.uint8))
    return bad


def _low_pass(shape):
    y, x = np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij")
    return np.exp(-((x**2 + y**2) / 0.05**2))


@pytest.mark.parametrize("given", [True, False], ids=["grid and white", "nothing"])
def test_bad_frames_are_named_and_the_others_done(recording, bad_raws, given, tmp_path):
    folder, truth, _ = recording
    out = tmp_path / "out"
    files = ("--grid", folder / "grid.json", "--white", folder / "white.png") if given else ()
    done = lifcal("focus", bad_raws, *files, "-o", out)
    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if line.startswith("lifcal: error")]
    bad = {**BAD, "white.png": BAD["flat.png"]}
    if given:
        del bad["white.png"]  # it is not a frame, and not an error
    for name, word in bad.items():
        assert sum(name in line and word in line for line in lines) == 1, (name, lines)
    assert lines[-1].endswith(f"{len(bad)} of {len(bad) + 2} frames could not be done")
    assert len(lines) == len(bad) + 1
    assert "2 frames, virtual depth" in done.stdout
    content = json.loads((out / "focus.json").read_text())
    assert list(content["frames"]) == ["good0", "good1"]
    assert set(content["failed"]) == {Path(name).stem for name in bad}
    assert sorted(path.name for path in (out / "focused").iterdir()) == ["good0.png", "good1.png"]
    assert median_error(out, {"good0": truth["0"], "good1": truth["1"]}) < 0.02
    assert not list(out.rglob(".*"))


def test_only_bad_frames_write_nothing(recording, bad_raws, here, tmp_path):
    folder, _, _ = recording
    out = tmp_path / "out"
    files = ("--grid", folder / "grid.json", "--white", folder / "white.png")
    for name in ("black", "flat"):
        done = here("focus", bad_raws / f"{name}.png", *files, "-o", out)
        assert_one_line_error(done, BAD[f"{name}.png"])
    done = here("focus", bad_raws / "black.png", bad_raws / "saturated.png", "-o", out, "--json")
    assert done.returncode == 1
    assert "2 of 2 frames could not be done" in done.stderr
    assert set(json.loads(done.stdout)["failed"]) == {"black", "saturated"}
    assert not out.exists()


def test_from_the_raws_alone(recording, here, tmp_path):
    folder, truth, grid = recording
    out = tmp_path / "out"
    done = here("focus", folder / "raw", "-o", out)
    assert done.returncode == 0, done.stderr
    found = read_grid(out / "grid.json")
    assert center_error_px(found, grid) < 0.05
    # The focal planes too, to some 6 % from three frames of this size.
    assert found.focal_planes == pytest.approx(grid.focal_planes, rel=0.12)
    assert json.loads((out / "focus.json").read_text())["grid"]["source"] == "scene frames"
    assert median_error(out, truth) < 0.02
    before = times(out)
    assert here("focus", folder / "raw", "-o", out).returncode == 0
    assert times(out) == before
    # What was found must stay what it was.
    write_grid(out / "grid.json", grid)
    assert_one_line_error(here("focus", folder / "raw", "-o", out), "grid.json: was changed")


def test_a_makers_grid_to_start_from(recording, here, tmp_path):
    folder, _, grid = recording
    raw, out = folder / "raw" / "0.png", tmp_path / "out"
    files = ("--xml", folder / "grid.json", "--white", folder / "white.png")
    done = here("focus", raw, *files, "--scale", 0.25, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "the grid moved by" in done.stderr
    found = read_grid(out / "grid.json")
    assert center_error_px(found, grid) < 0.02
    np.testing.assert_array_equal(found.focal_planes, grid.focal_planes)


def test_color_of_16_bits(recording, here, tmp_path):
    folder, _, _ = recording
    mosaic = read_image(folder / "raw" / "0.png").astype(np.uint16) * 257
    mosaic[::2, ::2] //= 2  # the red pixels of a greenish blue scene
    write_png(tmp_path / "raw.png", mosaic)
    command = ["focus", tmp_path / "raw.png", "--grid", folder / "grid.json", "--bayer", "rggb"]
    more = ["--range", 2.2, 4.5, "--scale", 0.25, "-o", tmp_path / "out", "--json"]
    done = here(*command, *more)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["depth_range"] == [2.2, 4.5]
    focused = read_image(tmp_path / "out" / "focused" / "raw.png")
    assert focused.dtype == np.uint16
    assert focused.shape == (120, 160, 3)
    red, green, blue = focused.reshape(-1, 3).mean(axis=0)
    assert red == pytest.approx(0.5 * green, rel=0.05)
    assert blue == pytest.approx(green, rel=0.05)
    assert read_image(tmp_path / "out" / "virtual_depth" / "raw.tiff").shape == (120, 160)


def test_errors_are_one_line(recording, here, tmp_path):
    folder, _, _ = recording
    out = tmp_path / "out"
    raw, white = folder / "raw" / "0.png", folder / "white.png"
    write_png(tmp_path / "small.png", read_image(white)[:300])
    (tmp_path / "file").write_text("")
    for words, word in (
        ((tmp_path / "no.png",), "no.png: no such file"),
        ((raw, "--grid", tmp_path / "no.json"), "no.json: no such file"),
        ((raw, "--grid", white), "white.png"),
        ((raw, "--grid", folder / "grid.json", "--xml", white), "give only one"),
        ((raw, "--white", tmp_path / "small.png"), "640 x 300 px, the raws have 640 x 480 px"),
        ((raw, "--white", folder / "raw" / "1.png"), "not a white image"),
        ((raw, "--scale", 0), "scale is 0"),
        ((raw, "--range", -2, 3), "two virtual depths of one sign"),
        ((raw, "--bayer", "rgb"), "Bayer pattern"),
    ):
        assert_one_line_error(here("focus", *words, "-o", out), word)
    assert not out.exists()
    assert_one_line_error(here("focus", raw, "-o", tmp_path / "file"), "is a file")
    assert here("focus", raw).returncode == 2
    assert here("focus", "-o", out).returncode == 2


def test_interrupt_keeps_whole_frames(recording, tmp_path):
    folder, _, _ = recording
    (tmp_path / "raw").mkdir()
    for index in range(60):
        shutil.copy(folder / "raw" / f"{index % FRAMES}.png", tmp_path / "raw" / f"{index}.png")
    out = tmp_path / "out"
    command = arguments(folder, out)
    command[1] = tmp_path / "raw"
    errors = interrupt(out / "virtual_depth" / "1.tiff", *command)
    assert "interrupted: the same command goes on from here" in errors
    assert not list(out.rglob(".*"))
    assert "0" in json.loads((out / "focus.json").read_text())["frames"]


def test_a_full_disk_is_one_line(recording, tmp_path):
    out = tmp_path / "out"
    done = lifcal(*arguments(recording[0], out), preexec_fn=limit_file_size)
    assert_one_line_error(done, "cannot write")
    assert not list(out.rglob(".*"))
    assert not list(out.rglob("*.tiff"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_one_line(recording, tmp_path):
    tmp_path.chmod(0o500)
    assert_one_line_error(lifcal(*arguments(recording[0], tmp_path / "out")), "cannot write")


def test_help_imports_nothing_heavy():
    text = read_help("focus")
    for word in ("RAWS", "--jobs", "--scheduler", "--grid", "--white", "--range", "--scale"):
        assert word in text
