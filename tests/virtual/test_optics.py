"""The tables of the micro lenses behind a tilted array: against the lenses' own apertures."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import Apertures
from lifcal.simulate import build_camera
from lifcal.virtual import LensOptics
from lifcal.virtual._kernels_lenses import BINS_PER_PX


@pytest.fixture(scope="module")
def simulated():
    return build_camera("mini-real")


def test_each_lens_has_the_tables_of_its_own_distances(simulated, rng):
    """One focal length for each type; the distances to sensor and main lens are the lens' own."""
    camera, grid = simulated.camera, simulated.camera.grid
    p, pixel = camera.parameters, camera.pixel_size_mm
    tau = rng.uniform(-0.01, 0.01, len(grid))
    usual = LensOptics.from_grid(grid)
    found = usual.behind_tilt(grid, tau)
    ratio = p.array_to_sensor_mm / p.lens_to_array_mm
    total = p.lens_to_array_mm + p.array_to_sensor_mm
    offsets = np.array([1.0, 2.5, 3.5, 4.25])
    bins = np.rint(offsets * BINS_PER_PX).astype(int)
    errors, changes = [], []
    for lens in rng.choice(len(grid), 30, replace=False):
        kind, row = grid.lens_types[lens], found.lens_types[lens]
        own_ratio = ratio * (1.0 + tau[lens])
        b = total / (1.0 + own_ratio)
        focal = simulated.micro_focal_lengths_mm[kind]
        v_focus = 1.0 / (1.0 - (total - b) / focal)
        own = replace(simulated.apertures, lens_to_array_mm=b, array_to_sensor_mm=total - b)
        assert isinstance(own, Apertures)
        rho = (own_ratio + 1.0 / v_focus) / (1.0 + own_ratio)
        # B / b_L0 = 0.024 is left out where it stands beside 1
        assert found.focal_rhos[row] == pytest.approx(rho, abs=0.08 * 0.01)
        light = own.compute_illumination(offsets * pixel, v_focus)
        light = light / own.compute_illumination(0.0, v_focus)
        weight = 1.2 / (1.0 / light + 0.2 / light**2)
        errors.append(found.weights[row, bins] - weight)
        changes.append(usual.weights[kind, bins] - weight)
    assert np.abs(errors).max() < 0.1 * np.abs(changes).max()


def test_without_a_tilt_nothing_changes(simulated):
    grid = simulated.camera.grid
    usual = LensOptics.from_grid(grid)
    found = usual.behind_tilt(grid, np.zeros(len(grid)))
    for name in ("weights", "shifts_px", "drifts_px", "focal_rhos"):
        np.testing.assert_allclose(
            getattr(found, name)[found.lens_types],
            getattr(usual, name)[grid.lens_types],
            rtol=1e-6,  # of float32
            atol=1e-6,
        )


def test_a_grid_without_discs_or_focal_planes_knows_nothing_of_the_tilt(simulated):
    for missing in ({"discs": None}, {"focal_planes": None}):
        grid = replace(simulated.camera.grid, **missing)
        usual = LensOptics.from_grid(grid)
        assert usual.behind_tilt(grid, np.linspace(0.0, 0.01, len(grid))) is usual


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 1e300, -1e300, 3.0])
def test_every_lens_has_a_row_whatever_the_tilt(simulated, wild):
    """Rows are indices of compiled loops, which check no bounds."""
    grid = simulated.camera.grid
    for chosen in (slice(None), slice(0, 1)):
        tau = np.linspace(-0.01, 0.01, len(grid))
        tau[chosen] = wild
        found = LensOptics.from_grid(grid).behind_tilt(grid, tau)
        assert found.lens_types.min() >= 0
        assert found.lens_types.max() < len(found.focal_rhos) == len(found.shifts_px)
        assert np.isfinite(found.focal_rhos).all()
        assert (np.sign(found.focal_rhos) == 1.0).all()
        for table in (found.weights, found.shifts_px, found.drifts_px):
            assert np.isfinite(table).all()
