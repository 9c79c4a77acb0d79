import numpy as np
import pytest

from lifcal.camera import GridBend, Lattice, MicroLensGrid, grid_from_center_list
from lifcal.errors import EstimationError, InputError

SIZE = (900, 700)


@pytest.fixture(params=["hexagonal-rows", "hexagonal-columns", "square"])
def grid(request, rng):
    lattice = Lattice.regular(request.param, 21.3, (444.0, 341.0), rotation_rad=0.1, n_types=3)
    bend = GridBend(SIZE, rng.normal(scale=1.0, size=(7, 2)))
    return MicroLensGrid.from_lattice(lattice, SIZE, bend=bend)


def test_a_list_becomes_lattice_and_bend(grid, rng):
    listed = rng.permutation(len(grid))[: int(0.95 * len(grid))]  # any order, some missing
    centers = grid.centers_raw_px[listed] + rng.normal(scale=0.02, size=(len(listed), 2))
    found = grid_from_center_list(
        centers, SIZE, lens_types=grid.lens_types[listed], focal_planes=[2.0, 3.0, 4.0]
    )
    assert found.lattice.layout == grid.lattice.layout
    assert found.n_types == 3
    assert found.bend.rms_px == pytest.approx(grid.bend.rms_px, rel=0.05)
    nearest = found.nearest(grid.centers_raw_px)
    off = found.centers_raw_px[nearest] - grid.centers_raw_px
    assert np.abs(off).max() < 0.02
    np.testing.assert_array_equal(found.lens_types[nearest], grid.lens_types)
    exact = grid_from_center_list(grid.centers_raw_px, SIZE, deviations=True)
    off = exact.centers_raw_px[exact.nearest(grid.centers_raw_px)] - grid.centers_raw_px
    assert np.abs(off).max() < 0.001


def test_what_is_no_lattice_is_refused(grid, rng):
    with pytest.raises(EstimationError, match=r"follow a lattice|same place"):
        grid_from_center_list(rng.uniform(0.0, 600.0, (400, 2)), SIZE)
    with pytest.raises(EstimationError, match="too few"):
        grid_from_center_list([[1.0, 2.0]], SIZE)
    with pytest.raises(EstimationError, match="on a line"):
        grid_from_center_list([[20.0 * i, 5.0] for i in range(20)], SIZE)
    with pytest.raises(EstimationError, match="types do not follow"):
        grid_from_center_list(grid.centers_raw_px, SIZE, lens_types=rng.integers(0, 3, len(grid)))
    with pytest.raises(InputError, match="2 lens types"):
        grid_from_center_list(grid.centers_raw_px, SIZE, lens_types=[0, 1])


def test_real_centers(shared_data):
    """26,600 centers of a real white image: a tilted array makes a quadratic field."""
    path = shared_data / "R12-A" / "center-R12-A.csv"
    centers = np.genfromtxt(path, delimiter=",", skip_header=1)[:, 2:]
    grid = grid_from_center_list(centers, (4080, 3068))
    assert grid.pitch_px == pytest.approx(23.31, abs=0.01)
    assert 0.05 < grid.bend.rms_px < 0.1
    assert np.hypot(*grid.bend.at(centers).T).max() < 0.5
