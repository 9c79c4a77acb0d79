"""The grid from white images, from scenes, from a maker's grid: against truth."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.grid import (
    center_error_px,
    damage,
    make_optics,
    make_white,
    radii_error,
    render_white,
    wrong_types,
)
from lifcal.camera import Lattice, MicroLensGrid, read_grid, write_grid
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.grid.fit import (
    WHITE_STRUCTURE,
    LensFlag,
    average_frames,
    fit_grid_to_frames,
    fit_grid_to_white,
    refine_grid,
)
from lifcal.grid.lattice_search import find_lattice
from lifcal.imaging.frames import make_frame, open_frames
from lifcal.imaging.raytrix import read_raytrix_xml
from lifcal.simulate import Imperfections, Simulation, SimulationOptions

CASES = {
    "hexagonal, three types": ("hexagonal-columns", 0.0008, (2.5, 3.1, 4.2)),
    "hexagonal, turned": ("hexagonal-rows", 0.2, (2.5, 3.1, 4.2)),
    "hexagonal, one type": ("hexagonal-rows", -0.05, (3.0,)),
    "square": ("square", -0.3, (3.0,)),
    "square, two types": ("square", 0.01, (2.5, 4.2)),
}


def small(layout, rotation, planes, pitch=14.3, **options):
    return make_optics(layout, rotation, planes, size=(380, 300), pitch_px=pitch, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bits", [8, 16])
def test_white_image(case, bits, rng):
    optics = small(*CASES[case])
    truth = optics.camera.grid
    fit = fit_grid_to_white(make_white(optics, bits, rng))
    assert fit.layout == truth.lattice.layout
    assert fit.pitch_px == pytest.approx(14.3, abs=1e-3)
    assert fit.rotation_rad == pytest.approx(truth.lattice.rotation_rad, abs=1e-4)
    # The task is 0.02 px; noise alone leaves a tenth of it.
    assert center_error_px(fit.grid, truth) < 0.005
    assert wrong_types(fit, truth) == 0.0
    assert radii_error(fit, truth) < 0.03
    assert fit.source == "white"
    assert fit.structure < WHITE_STRUCTURE
    assert fit.rms_px < 0.05
    inner = (fit.flags & LensFlag.RIM) == 0
    assert ((fit.flags[inner] & LensFlag.USED) > 0).mean() > 0.98
    assert len(fit.flags) == len(fit.residuals_px) == len(fit.grid)
    used = fit.residuals_px[(fit.flags & LensFlag.USED) > 0]
    assert fit.rms_px == pytest.approx(np.sqrt(np.mean(np.sum(used**2, axis=1))), rel=0.02)


@pytest.mark.parametrize("case", ["hexagonal, three types", "square"])
def test_bad_lenses_are_flagged_and_do_no_harm(case, rng):
    optics = small(*CASES[case])
    truth = optics.camera.grid
    light = render_white(optics)
    damaged = damage(light, truth, rng, share=0.05)
    fit = fit_grid_to_white(damaged)
    # With one lens type, the dark corners are taken for cos^4 of directions, which they are not.
    assert center_error_px(fit.grid, truth) < (0.02 if fit.grid.n_types == 1 else 0.01)
    assert wrong_types(fit, truth) == 0.0
    assert radii_error(fit, truth) < 0.03
    # A lens switched off altogether is called dead, and only that one.
    labels = replace(truth, radius_px=0.7 * truth.pitch_px).label_image()
    victim = int(truth.nearest([[190.0, 150.0]])[0])
    off = light.copy()
    off[labels == victim] = 0.0
    flags = fit_grid_to_white(off)
    found = flags.grid.nearest(truth.centers_raw_px[[victim]])[0]
    assert flags.flags[found] == LensFlag.DEAD
    assert np.count_nonzero(flags.flags & LensFlag.DEAD) == 1


def test_a_shifted_lens_shows_in_its_residual(rng):
    """The residuals are measured minus fitted, lens by lens: one lens moved by hand comes back."""
    optics = small(*CASES["square"])
    truth = optics.camera.grid
    light = render_white(optics, 32)
    victim = int(truth.nearest([[190.0, 150.0]])[0])
    centers = truth.centers_raw_px.copy()
    lattice = truth.lattice
    plain = fit_grid_to_white(light)
    moved = light.copy()
    labels = truth.label_image() == victim
    rows, cols = np.nonzero(labels)
    from scipy.ndimage import map_coordinates

    moved[rows, cols] = map_coordinates(light, [rows - 0.0, cols - 0.4], order=3)
    fit = fit_grid_to_white(moved)
    at = fit.grid.nearest(centers[[victim]])[0]
    change = fit.residuals_px[at] - plain.residuals_px[plain.grid.nearest(centers[[victim]])[0]]
    # The window holds parts of the neighbors, which stay: somewhat less than 0.4.
    assert 0.2 < change[0] < 0.45
    assert abs(change[1]) < 0.05
    assert center_error_px(fit.grid, truth) < 0.005
    assert lattice.layout == fit.layout


@pytest.mark.parametrize("pitch", [8.0, 15.0, 41.7])
def test_pitches(pitch, rng):
    """Small ones, whole pixels not turned (few sub-pixel phases), large ones."""
    optics = small("square" if pitch == 15.0 else "hexagonal-rows", 0.0, (3.0,), pitch=pitch)
    fit = fit_grid_to_white(make_white(optics, 8, rng))
    assert fit.pitch_px == pytest.approx(pitch, rel=3e-4)
    assert center_error_px(fit.grid, optics.camera.grid) < 0.02
    assert fit.grid.n_types == 1


def test_tilt_and_shear_are_followed(rng):
    lattice = Lattice.regular(
        "hexagonal-rows", 14.3, (190.3, 151.8), rotation_rad=0.03, aspect=1.01, shear=0.006
    )
    optics = small("hexagonal-rows", 0.0, (3.0,))
    grid = MicroLensGrid.from_lattice(lattice, (380, 300))
    optics = replace(optics, camera=replace(optics.camera, grid=grid))
    fit = fit_grid_to_white(make_white(optics, 8, rng))
    assert center_error_px(fit.grid, grid) < 0.01


def test_a_vignetted_rim_is_left_out(rng):
    optics = small("hexagonal-rows", 0.1, (3.0,))
    white = make_white(optics, 8, rng).astype(np.float32)
    y, x = np.mgrid[0:300, 0:380]
    radius = np.hypot(x - 190.0, y - 150.0)
    white *= np.clip((190.0 - radius) / 40.0, 0.0, 1.0)  # the image circle ends inside the image
    fit = fit_grid_to_white(white)
    assert center_error_px(fit.grid, optics.camera.grid) < 0.05
    corner = fit.grid.nearest([[3.0, 3.0]])[0]
    assert fit.flags[corner] == LensFlag.RIM


@pytest.fixture(scope="module")
def recording():
    simulation = Simulation(
        SimulationOptions(
            camera="mini",
            scene="desk",
            frames=8,
            rays_per_pixel=2,
            imperfections=Imperfections(lattice="recorded"),
        )
    )
    raws = [simulation.render_frame(index).raw for index in range(8)]
    return simulation.optics.camera.grid, raws


def test_scene_frames_without_a_white_image(recording):
    truth, raws = recording
    several, one = fit_grid_to_frames(raws), fit_grid_to_frames(raws[:1])
    assert (several.source, one.source) == ("frames", "scene")
    assert center_error_px(several.grid, truth) < 0.01
    assert center_error_px(one.grid, truth) < 0.05
    for fit in (several, one):
        assert fit.layout == "hexagonal"
        assert fit.structure > 0.05  # of the roughness in it, which is less than its contrast
        assert any("white image" in each.text for each in fit.findings)
    assert wrong_types(several, truth) == 0.0
    assert radii_error(several, truth) < 0.03
    seen = []
    average_frames(raws, max_frames=3, on_frame=lambda *numbers: seen.append(numbers))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_frames_that_cannot_be_read_are_left_out_if_asked(recording, tmp_path):
    from lifcal.imaging.files import write_png

    for index, raw in enumerate(recording[1][:3]):
        write_png(tmp_path / f"{index}.png", raw)
    (tmp_path / "1.png").write_bytes(b"broken")
    frames = open_frames(tmp_path)
    with pytest.raises(DataError, match=r"1\.png"):
        average_frames(frames)
    problems = []
    assert average_frames(frames, on_problem=problems.append).count == 2
    assert len(problems) == 1
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="none of the 1 frames"):
        average_frames(open_frames(tmp_path / "only"), on_problem=problems.append)


def test_a_given_grid_is_moved_and_keeps_its_types(recording, rng):
    truth, raws = recording
    off = truth.lattice.origin_px + np.array([1.7, -1.2])
    lattice = replace(truth.lattice, origin_px=off, type_rule=(2, 1, 1))
    planes = np.array([1.0, 2.0, 3.0])
    start = MicroLensGrid.from_lattice(lattice, truth.image_size, focal_planes=planes)
    for image, bound in ((average_frames(raws), 0.01), (raws[0], 0.05)):
        fit = refine_grid(start, image, source="scene")
        assert center_error_px(fit.grid, truth) < bound
        assert fit.lattice.type_rule == (2, 1, 1)
        assert np.array_equal(fit.grid.focal_planes, planes)
        assert any("moved by (-1." in each.text for each in fit.findings)
    # One raw moves the grid, but leaves its pitch.
    assert fit.lattice.basis_px == pytest.approx(lattice.basis_px, abs=1e-12)
    with pytest.raises(InputError, match="640 x 480 px, the image has 640 x 100"):
        refine_grid(start, raws[0][:100])
    listed = MicroLensGrid.from_centers([[5.0, 5.0]], (640, 480), radius_px=3.0)
    with pytest.raises(InputError, match="needs a lattice"):
        refine_grid(listed, raws[0])


def test_types_can_be_given(rng):
    white = make_white(small(*CASES["hexagonal, three types"]), 8, rng)
    assert fit_grid_to_white(white, n_types=1).grid.n_types == 1
    plain = make_white(small(*CASES["hexagonal, one type"]), 8, rng)
    assert fit_grid_to_white(plain, n_types=3, discs=False).grid.n_types == 3
    assert fit_grid_to_white(plain, discs=False).discs is None


def test_discs_are_kept_in_the_file(rng, tmp_path):
    fit = fit_grid_to_white(make_white(small(*CASES["hexagonal, three types"]), 8, rng))
    write_grid(tmp_path / "grid.json", fit.grid)
    again = read_grid(tmp_path / "grid.json")
    assert again.discs == fit.discs
    assert again.discs is not None
    assert np.array_equal(again.centers_raw_px, fit.grid.centers_raw_px)
    text = (tmp_path / "grid.json").read_text()
    without = "".join(text.partition(',\n  "overlap_discs"')[:1]) + "\n}\n"
    (tmp_path / "old.json").write_text(without)
    assert read_grid(tmp_path / "old.json").discs is None
    (tmp_path / "bad.json").write_text(text.replace('"main_px": ', '"main_px": -'))
    with pytest.raises(DataError, match="main_px"):
        read_grid(tmp_path / "bad.json")


def test_a_stopped_down_main_lens_is_told_from_the_micro_lenses(rng):
    """With several types the disc that all share is the main one, though it is the smaller."""
    optics = small("hexagonal-rows", 0.01, (2.5, 3.1, 4.2), pitch=23.2, main_fill=0.2)
    truth = optics.camera.grid
    fit = fit_grid_to_white(make_white(optics, 16, rng, rays=32))
    assert truth.discs.main_px < min(truth.discs.micro_px)
    assert radii_error(fit, truth) < 0.05
    assert wrong_types(fit, truth) == 0.0


def test_a_color_mosaic_is_allowed_for(rng):
    """Interpolating it blurs the fall-off; the discs must not grow by that."""
    optics = make_optics("hexagonal-rows", 0.01, (2.5, 3.1, 4.2), size=(380, 300))
    frame = make_frame(make_white(optics, 16, rng), "white", "white.png", "rggb")
    truth = optics.camera.grid
    fit = fit_grid_to_white(frame)
    assert center_error_px(fit.grid, truth) < 0.01
    assert radii_error(fit, truth) < 0.03
    assert radii_error(fit_grid_to_white(frame.gray), truth) > 0.03  # not told


def test_a_saturated_white_image_is_noted(rng):
    optics = small(*CASES["hexagonal, three types"])
    stored = np.clip(make_white(optics, 8, rng).astype(int) * 2, 0, 255).astype(np.uint8)
    fit = fit_grid_to_white(make_frame(stored, "white", "white.png"))
    assert "image-saturated" in [each.code for each in fit.findings]
    assert center_error_px(fit.grid, optics.camera.grid) < 0.02


def test_what_is_no_grid_is_refused(rng):
    with pytest.raises(EstimationError, match="no micro-lens pattern"):
        fit_grid_to_white(rng.uniform(0.0, 1.0, (300, 300)))
    with pytest.raises(EstimationError, match="too small"):
        fit_grid_to_white(np.ones((20, 300)))
    with pytest.raises(InputError, match="needs gray values"):
        fit_grid_to_white(np.ones((20, 300, 3)))
    with pytest.raises(InputError, match="no frames"):
        fit_grid_to_frames([])


def test_thin_gaps_are_not_taken_for_half_the_pitch():
    """Narrow dark lines have overtones as strong as the fundamental."""
    image = np.full((400, 400), 0.8, np.float32)
    position = np.arange(400)
    line = np.exp(-(((position + 13.0) % 40.0 - 20.0) ** 2) / 4.5)
    image *= 1.0 - 0.9 * line[:, None]
    image *= 1.0 - 0.9 * line[None, :]
    lattice = find_lattice(image)
    assert lattice.pitch_px == pytest.approx(40.0, abs=0.2)
    offset = (np.array([27.0, 27.0]) - lattice.origin_px) @ np.linalg.inv(lattice.basis_px)
    assert np.abs(offset - np.round(offset)).max() < 0.05


def test_real_white_image(shared_data):
    fit = fit_grid_to_white(open_frames(shared_data / "white-microscope" / "white.tif").read(0))
    assert fit.layout == "square"
    assert fit.pitch_px == pytest.approx(15.4, abs=0.1)
    assert fit.rms_px < 0.05
    assert fit.grid.n_types == 1


def test_real_raws(shared_data):
    keplerian = fit_grid_to_frames([open_frames(shared_data / "keplerian-square/raw.jpg").read(0)])
    assert keplerian.layout == "square"
    assert keplerian.pitch_px == pytest.approx(74.5, abs=0.5)
    frame = open_frames(shared_data / "R42" / "sc2_klein.png").read(0)
    maker = read_raytrix_xml(shared_data / "R42" / "sc2_klein.xml").grid(frame.image_size)
    fit = refine_grid(maker, frame, source="scene")
    # The crop's middle is not the camera's: the circles in the picture fit after this move.
    moved = fit.lattice.origin_px - maker.lattice.origin_px
    assert moved == pytest.approx([2.8, 2.1], abs=0.5)
    assert fit_grid_to_frames([frame]).pitch_px == pytest.approx(maker.pitch_px, rel=0.003)


def test_what_a_fit_finds_odd(rng):
    """Lens types that a hexagonal grid cannot have, and lenses in the dark."""
    white = np.array(Simulation(SimulationOptions(camera="mini")).render_white())
    odd = fit_grid_to_white(white, n_types=2)
    assert "lens-types-misfit" in [each.code for each in odd.findings]
    dark = white.copy()
    lenses = odd.grid.centers_raw_px
    for x, y in lenses[rng.random(len(lenses)) < 0.3]:
        rows, cols = (slice(max(int(v) - 6, 0), int(v) + 7) for v in (y, x))
        dark[rows, cols] = 0
    found = fit_grid_to_white(dark)
    assert "lenses-dead" in [each.code for each in found.findings]
