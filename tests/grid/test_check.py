from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import MicroLensGrid
from lifcal.errors import DataError
from lifcal.grid.check import (
    GridOffset,
    check_grid,
    check_lens_types,
    follow_grid,
    measure_grid_shifts,
    measure_modulation,
    measure_offset,
    move_grid,
)
from lifcal.grid.fit import (
    average_frames,
    fit_grid_to_frames,
    fit_grid_to_white,
    refine_grid,
)
from lifcal.grid.overlap_fit import match_types
from lifcal.imaging.camera_formats import read_camera_file
from lifcal.imaging.frames import make_frame, open_frames
from lifcal.simulate import Imperfections, Simulation, SimulationOptions

REGULAR = Imperfections(lattice="recorded")
"""Centers that form a lattice as they are recorded: these tests move and exchange lattices."""


@pytest.fixture(scope="module")
def seen():
    simulation = Simulation(
        SimulationOptions(camera="mini", frames=1, rays_per_pixel=2, imperfections=REGULAR)
    )
    frame = make_frame(simulation.render_frame(0).raw, "0", "0.png")
    return frame, simulation.optics.camera.grid


def moved(grid, shift):
    lattice = replace(grid.lattice, origin_px=grid.lattice.origin_px + shift)
    return MicroLensGrid.from_lattice(lattice, grid.image_size, radius_px=grid.radius_px)


def test_shifts_are_measured(seen):
    frame, grid = seen
    assert np.abs(measure_grid_shifts(frame, grid)).max() < 0.15
    shifts = measure_grid_shifts(frame, moved(grid, [1.5, -2.0]))
    np.testing.assert_allclose(np.median(shifts, axis=0), [-1.5, 2.0], atol=0.1)


def test_the_grid_of_the_frame_is_good(seen):
    check_grid(*seen)


@pytest.mark.parametrize("shift", [[0.8, 0.0], [0.0, -3.0], [6.3, 0.0]])
def test_another_grid_is_said(seen, shift):
    frame, grid = seen
    with pytest.raises(DataError, match="off the grid"):
        check_grid(frame, moved(grid, shift))


def test_a_list_of_centers_is_taken_as_it_is(seen):
    frame, grid = seen
    listed = MicroLensGrid.from_centers(grid.centers_raw_px, grid.image_size, radius_px=6.0)
    assert np.isnan(measure_grid_shifts(frame, listed)).all()
    check_grid(frame, listed)


def test_modulation_is_that_of_the_dark_between_micro_images(seen):
    frame, grid = seen
    rows, cols = np.mgrid[:480, :640]
    waves = [
        np.cos(2.0 * np.pi * (f @ np.moveaxis([cols, rows], 0, 1))).astype(np.float32)
        for f in np.linalg.inv(grid.lattice.basis_px).T
    ]
    made = replace(frame, gray=0.5 + 0.1 * waves[0] + 0.15 * waves[1])
    assert measure_modulation(made, grid.lattice) == pytest.approx(0.2, rel=0.02)
    wide = replace(grid.lattice, basis_px=1.02 * grid.lattice.basis_px)
    assert measure_modulation(frame, wide) > 0.9 * measure_modulation(frame, grid.lattice) > 0.36


def test_where_nothing_dark_is_between_micro_images_the_place_is_not_asked(seen):
    """The phase is then that of the scene: it is no reason to refuse a frame."""
    frame, grid = seen
    bright = replace(frame, gray=0.5 + 0.3 * frame.gray)
    check_grid(bright, moved(grid, [3.0, 0.0]))
    with pytest.raises(DataError, match="off the grid"):
        check_grid(replace(frame, gray=0.01 + 0.9 * frame.gray), moved(grid, [3.0, 0.0]))


def test_real_cameras_whose_micro_images_touch_are_not_refused(shared_data):
    frame = open_frames(shared_data / "R42" / "sc2_klein.png").read(0)
    start = read_camera_file(shared_data / "R42" / "sc2_klein.xml").grid(frame.image_size)
    square = open_frames(shared_data / "keplerian-square" / "raw.jpg").read(0)
    for own, fit in (
        (frame, refine_grid(start, average_frames([frame]))),
        (square, fit_grid_to_frames([square])),
    ):
        check_grid(own, fit.grid)
        check_lens_types(own, fit.grid)


def test_another_pitch_or_angle_is_said(seen):
    """Right in the middle, and off in the corners."""
    frame, grid = seen
    middle = 0.5 * (np.array(grid.image_size) - 1.0)
    for turn in (np.diag([1.002, 1.002]), np.array([[1.0, -0.002], [0.002, 1.0]])):
        lattice = replace(
            grid.lattice,
            origin_px=middle + turn @ (grid.lattice.origin_px - middle),
            basis_px=grid.lattice.basis_px @ turn.T,
        )
        with pytest.raises(DataError, match="toward the corners"):
            check_grid(frame, replace(grid, lattice=lattice))


def retyped(grid, rule):
    """The grid with its types by another rule, as one that is off by a lens has them."""
    return MicroLensGrid.from_lattice(
        replace(grid.lattice, type_rule=rule),
        grid.image_size,
        radius_px=grid.radius_px,
        discs=grid.discs,
    )


def test_lens_types_of_the_frame_are_good(seen):
    check_lens_types(*seen)


@pytest.mark.parametrize("rule", [(1, 2, 1), (1, 2, 2), (2, 1, 0), (2, 1, 1), (2, 1, 2)])
def test_other_lens_types_are_said(seen, rule):
    frame, grid = seen
    assert grid.lattice.type_rule == (1, 2, 0)
    other = retyped(grid, rule)
    with pytest.raises(DataError, match="off by a whole lens, or its types were exchanged") as said:
        check_lens_types(frame, other)
    for own in range(3):  # as which type the lenses of each type look
        really = grid.lens_types[other.lens_types == own]
        assert (really == really[0]).all()
        looks = str(said.value).split("look like type ")[1].split(":")[0].split(", ")
        assert int(looks[own]) == really[0]


def test_a_grid_that_is_off_by_one_lens_is_said(seen):
    frame, grid = seen
    origin = grid.lattice.origin_px + grid.lattice.basis_px[0]
    off = MicroLensGrid.from_lattice(
        replace(grid.lattice, origin_px=origin), grid.image_size, discs=grid.discs
    )
    check_grid(frame, off)  # its micro images are where they should be
    with pytest.raises(DataError, match="off by a whole lens"):
        check_lens_types(frame, off)


def test_types_that_cannot_be_told_are_taken_as_they_are(seen):
    frame, grid = seen
    alike = replace(grid.discs, micro_px=(3.0, 3.0, 3.0))
    for other in (
        replace(retyped(grid, (2, 1, 0)), discs=None),
        replace(retyped(grid, (2, 1, 0)), discs=alike),
        MicroLensGrid.from_lattice(replace(grid.lattice, n_types=1), grid.image_size),
    ):
        check_lens_types(frame, other)
    dark = make_frame(np.full_like(frame.gray * 255, 9, np.uint8), "flat", "flat.png")
    check_lens_types(dark, retyped(grid, (2, 1, 0)))


def test_types_that_are_nearly_alike_are_not_told(seen):
    frame, grid = seen
    first, second, _ = grid.discs.micro_px
    for micro in ((first, first, first), (second, first, first)):
        discs = replace(grid.discs, micro_px=micro)
        assert match_types(frame.gray, replace(grid, discs=discs)) is None


def test_a_fall_off_that_all_types_share_does_not_matter(seen):
    """Of a lens that is stopped down, or a cover glass: the discs do not know it."""
    frame, grid = seen
    rows, cols = np.mgrid[:480, :640]
    pixels = np.stack([cols, rows], axis=-1).reshape(-1, 2).astype(float)
    center = grid.centers_raw_px[grid.index.nearest(pixels)]
    away = np.hypot(*(pixels - center).T).reshape(480, 640) / (0.5 * grid.pitch_px)
    darker = (frame.gray * np.clip(1.0 - 0.25 * away**2, 0.05, 1.0)).astype(np.float32)
    assert match_types(darker, grid) == (0, 1, 2)
    assert match_types(darker, retyped(grid, (1, 2, 1))) == (2, 0, 1)


def largest_distance(grid, other):
    """In pitches, over the lenses that are wholly in the image."""
    centers = grid.centers_raw_px
    inside = ((centers > 8.0) & (centers < np.array(grid.image_size) - 9.0)).all(axis=1)
    centers = centers[inside]
    off = other.centers_raw_px[other.index.nearest(centers)] - centers
    return np.hypot(*off.T).max() / grid.pitch_px


def test_a_grid_follows_the_micro_images():
    simulation = Simulation(
        SimulationOptions(camera="mini", frames=3, rays_per_pixel=2, imperfections=REGULAR)
    )
    frames = [make_frame(simulation.render_frame(i).raw, "f", "f.png") for i in range(3)]
    grid = simulation.optics.camera.grid
    assert follow_grid(frames, grid) is grid
    assert all(follow_grid([frame], grid) is grid for frame in frames)
    own = grid.lattice
    middle = 0.5 * (np.array(grid.image_size) - 1.0)
    for shift, stretch, least in ((0.1, 1.0, 0.007), (0.45, 1.0, 0.03), (-0.2, 1.001, 0.03)):
        lattice = replace(
            own,
            origin_px=middle + stretch * (own.origin_px - middle) + np.array([shift, 0.5 * shift]),
            basis_px=stretch * own.basis_px,
        )
        off = MicroLensGrid.from_lattice(
            lattice, grid.image_size, radius_px=grid.radius_px, discs=grid.discs
        )
        assert largest_distance(grid, off) > least
        found = follow_grid(frames, off)
        assert largest_distance(grid, found) < 0.005
        assert found.discs == grid.discs


def test_a_grid_follows_nothing_that_frames_do_not_tell(seen):
    frame, grid = seen
    off = moved(grid, [0.4, 0.0])
    assert follow_grid([frame], off) is not off
    flat = replace(frame, gray=np.full_like(frame.gray, 0.5))
    assert follow_grid([flat], off) is off
    assert follow_grid([], off) is off
    listed = MicroLensGrid.from_centers(grid.centers_raw_px, grid.image_size, radius_px=6.0)
    assert follow_grid([frame], listed) is listed


def test_only_what_is_clearly_seen_moves_a_grid(seen):
    """Five sigmas of the fitted centers are needed, and 0.3 % of the pitch."""
    _, grid = seen

    def follow(shift, stretch, sigma):
        move = np.array([[shift, 0.0], [stretch, 0.0], [0.0, stretch]])
        return move_grid(grid, GridOffset(move, 0.0, sigma))

    assert follow(0.1, 0.0, 0.03) is grid  # 0.8 % of the pitch, but not sure
    assert follow(0.03, 0.0, 0.001) is grid  # sure, and of no consequence
    found = follow(0.1, 0.0, 0.01)
    np.testing.assert_allclose(found.lattice.origin_px - grid.lattice.origin_px, [0.1, 0.0])
    np.testing.assert_allclose(found.lattice.basis_px, grid.lattice.basis_px, atol=1e-12)
    assert follow(0.0, 0.2, 0.1) is grid
    stretched = follow(0.0, 0.2, 0.02).lattice
    # 0.2 px at the border, 320 px and 240 px from the middle
    wanted = grid.lattice.basis_px * (1.0 + 0.2 / np.array([320.0, 240.0]))
    np.testing.assert_allclose(stretched.basis_px, wanted, rtol=1e-12)
    # beyond 4 % of the pitch, 0.5 px, the micro images are those of another grid
    assert follow(0.49, 0.0, 0.01) is not grid
    assert follow(0.52, 0.0, 0.01) is grid
    assert follow(0.0, 0.4, 0.01) is grid  # 0.57 px in the corners


def test_a_grid_of_another_focus_is_stretched_back():
    """Also behind a lens with shading, which looks like another stretch in rough borders."""
    simulation = Simulation(SimulationOptions(camera="mini-real", frames=4, rays_per_pixel=4))
    frames = [make_frame(simulation.render_frame(i).raw, "f", "f.png") for i in range(4)]
    grid = fit_grid_to_white(make_frame(simulation.render_white(), "w", "w.png")).grid
    assert follow_grid(frames, grid) is grid
    assert measure_offset(frames, grid).misfit_px < 0.03
    middle = 0.5 * (np.array(grid.image_size) - 1.0)
    own = grid.lattice
    lattice = replace(
        own,
        origin_px=middle + 1.0005 * (own.origin_px - middle),
        basis_px=1.0005 * own.basis_px,
    )
    found = follow_grid(frames, grid.on_lattice(lattice, grid.bend))
    np.testing.assert_allclose(found.lattice.basis_px, own.basis_px, rtol=2e-4, atol=2e-3)
