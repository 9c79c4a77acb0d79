from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import MicroLensGrid
from lifcal.errors import DataError
from lifcal.imaging.frames import make_frame
from lifcal.imaging.grid_check import check_grid, measure_grid_shifts
from lifcal.simulate import Simulation, SimulationOptions


@pytest.fixture(scope="module")
def seen():
    simulation = Simulation(SimulationOptions(camera="mini", frames=1, rays_per_pixel=2))
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
