"""Grids whose centers are not on a lattice: bend, jitter and shading, from white images."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import cKDTree

from benchmarks.grid import make_optics, make_white
from benchmarks.white_images import DISTANCE, FAR, SIZE, render_white, rms
from lifcal.camera import GridBend, MicroLensGrid, read_grid, write_grid
from lifcal.errors import DataError
from lifcal.grid.check import (
    check_grid,
    compare_fill,
    follow_grid,
    measure_grid_shifts,
    measure_offset,
)
from lifcal.grid.fit import LensFlag, fit_grid_to_frames, fit_grid_to_white, refine_grid
from lifcal.grid.picture import draw_grid_fit
from lifcal.imaging.frames import make_frame, open_frames
from lifcal.simulate import Imperfections, Simulation, SimulationOptions


@pytest.fixture(scope="module")
def bent():
    rng = np.random.default_rng(5)
    white = render_white(rng, brown_px=3.5, tilt_px=0.4, jitter_px=0.05, cos4=True, dust=0.03)
    return white, fit_grid_to_white(white.image)


def test_bend_tilt_shading_jitter_and_dust_together(bent):
    white, fit = bent
    errors = white.errors(fit.grid)
    assert rms(errors) < 0.03
    assert np.median(np.hypot(*errors.T)) < 0.015
    assert fit.grid.n_types == 3
    assert fit.grid.bend.order >= 3
    assert fit.trend_px < 0.02
    # Jitter of 0.05 px along each axis, and hardly shrunk: its noise is a sixth of that.
    assert 0.055 < fit.grid.deviations_rms_px < 0.08
    assert ((fit.flags & LensFlag.OUTLIER) > 0).sum() > 10
    # Without what it knows of single lenses, the jitter is left; without the bend, pixels are.
    assert rms(white.errors(drop(fit.grid, deviations=True))) > 0.06
    assert rms(white.errors(drop(fit.grid, bend=True))) > 0.3


def drop(grid, *, bend=False, deviations=False):
    return MicroLensGrid.from_lattice(
        grid.lattice,
        grid.image_size,
        radius_px=grid.radius_px,
        bend=None if bend else grid.bend,
        deviations_px=None if bend or deviations else grid.deviations_px,
    )


@pytest.mark.parametrize("aperture_px", [5.0, 9.0])
@pytest.mark.parametrize("n_types", [1, 3])
def test_shading_does_not_pull_centers(rng, aperture_px, n_types):
    """The centroid of brightness is pulled by 0.2 px in the corners."""
    white = render_white(rng, cos4=True, aperture_px=aperture_px, n_types=n_types)
    fit = fit_grid_to_white(white.image)
    # One type does not tell the micro aperture, on which the blur of the outline depends.
    assert rms(white.errors(fit.grid)) < (0.03 if n_types == 1 else 0.01)
    # cos^4 is not quite a slope: over a micro image that is seen under 10 degrees it is less steep
    assert fit.grid.discs.shading_px2 == pytest.approx(4.0 / (FAR * DISTANCE), rel=0.12)


def test_a_lattice_stays_one(rng):
    fit = fit_grid_to_white(render_white(rng).image)
    assert fit.grid.bend is None
    assert fit.grid.deviations_px is None
    assert fit.grid.discs.shading_px2 == 0.0
    assert fit.findings == ()


def test_a_large_bend_is_followed_from_the_middle(rng):
    white = render_white(rng, brown_px=8.0)
    fit = fit_grid_to_white(white.image)
    assert rms(white.errors(fit.grid)) < 0.01


def test_covariance_of_the_bend_is_honest():
    """Over noise: errors of the smooth field are as large as it says."""
    places = np.array([[x, y] for x in (90.0, 380.0, 670.0) for y in (70.0, 290.0, 510.0)])
    ratios = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        white = render_white(rng, brown_px=2.0, jitter_px=0.03, noise=0.03)
        grid = drop(fit_grid_to_white(white.image).grid, deviations=True)
        true = drop(fit_grid_to_white(render_white(rng, brown_px=2.0, noise=0.0).image).grid)
        error = (
            true.centers_raw_px[true.nearest(places)] - grid.centers_raw_px[grid.nearest(places)]
        )
        ratios.append(error / grid.bend.sigma_at(places)[:, None])
    # 6 x 18 numbers, of which six or so of each run are independent.
    assert 0.5 < np.sqrt(np.mean(np.square(ratios))) < 1.7


def test_a_bent_grid_is_written_and_refined(bent, tmp_path):
    white, fit = bent
    write_grid(tmp_path / "grid.json", fit.grid)
    assert (tmp_path / "grid.json").stat().st_size < 30_000
    read = read_grid(tmp_path / "grid.json")
    np.testing.assert_array_equal(read.centers_raw_px, fit.grid.centers_raw_px)
    moved = replace(read.lattice, origin_px=read.lattice.origin_px + np.array([1.5, -1.0]))
    start = read.on_lattice(moved, read.bend)
    again = refine_grid(start, white.image)
    assert rms(white.errors(again.grid)) < 0.03
    # One scene frame moves the grid as a whole: bend and deviations are kept.
    by_scene = refine_grid(start, white.image, source="scene")
    assert by_scene.grid.bend is read.bend
    assert by_scene.grid.deviations_rms_px == pytest.approx(read.deviations_rms_px, rel=0.02)
    assert rms(white.errors(by_scene.grid)) < 0.05


def test_the_picture_shows_the_bend(bent):
    white, fit = bent
    plain = replace(fit, grid=replace(fit.grid, bend=None))
    assert len(draw_grid_fit(fit, white.image)) > len(draw_grid_fit(plain, white.image))


# Checks


def test_a_bent_grid_is_not_refused_for_its_own_image(bent):
    white, fit = bent
    frame = make_frame(white.image.astype(np.uint8), "white", "white.png")
    check_grid(frame, fit.grid)
    # Shading shifts the phase of the brightness by 0.3 px here, that of the outlines by little.
    assert np.abs(measure_grid_shifts(frame, fit.grid)).max() < 0.1
    assert follow_grid([frame], fit.grid) is fit.grid
    off = fit.grid.on_lattice(
        replace(fit.grid.lattice, origin_px=fit.grid.lattice.origin_px + 0.4), fit.grid.bend
    )
    found = follow_grid([frame], off)
    assert found.bend is fit.grid.bend
    assert rms(white.errors(found)) < 0.06
    with pytest.raises(DataError, match="px off the grid"):
        check_grid(frame, off.on_lattice(replace(off.lattice, origin_px=[3.0, 5.0]), off.bend))


def test_a_bend_that_is_not_the_images_is_seen(bent):
    white, fit = bent
    frame = make_frame(white.image.astype(np.uint8), "white", "white.png")
    double = GridBend(SIZE, 2.0 * fit.grid.bend.coefficients_px)
    frames = [frame, frame]
    assert measure_offset(frames, fit.grid).misfit_px < 0.05
    for wrong in (drop(fit.grid, bend=True), replace(fit.grid, bend=double)):
        assert measure_offset(frames, wrong).misfit_px > 0.1
    assert np.isnan(measure_offset([frame], fit.grid).misfit_px)
    assert measure_offset([], fit.grid) is None


@pytest.mark.parametrize("main_fill", [0.72, 0.88])
def test_another_aperture_is_seen(rng, main_fill):
    frames = {}
    for fill in (0.8, main_fill):
        optics = make_optics("hexagonal-rows", 0.02, (2.5, 3.1, 4.2), size=SIZE, main_fill=fill)
        frames[fill] = make_frame(make_white(optics, 8, rng, rays=4), "w", "w.png")
    grid = optics.camera.grid
    assert compare_fill(frames[0.8], [frames[0.8]], grid) == 1.0
    ratio = compare_fill(frames[0.8], [frames[main_fill]], grid)
    assert ratio > 1.2 if main_fill > 0.8 else ratio < 0.8
    assert np.isnan(compare_fill(frames[0.8], [], grid))


# Recordings of another renderer


@pytest.mark.parametrize("name", ["bent", "tilted"])
def test_independent_recordings(shared_data, name):
    folder = shared_data / "independent" / name
    table = np.load(folder / "truth" / "micro_images.npy")
    true = table[:, 3:5]
    true = true[((true > 12.0) & (true < [1387.0, 987.0])).all(axis=1)]
    white, frames = open_frames(folder / "white.png").read(0), open_frames(folder / "raw")

    def error(grid):
        return rms(grid.centers_raw_px[grid.nearest(true)] - true)

    fit = fit_grid_to_white(white)
    assert error(fit.grid) < 0.03
    # Lenses of `tilted` jitter by 0.057 px rms, which frames do not show.
    from_frames = fit_grid_to_frames(frames, max_frames=20)
    assert error(from_frames.grid) < 0.07
    for index in range(0, len(frames), 6):
        check_grid(frames.read(index), fit.grid)
    chosen = [frames.read(index) for index in (0, 8, 16)]
    assert follow_grid(chosen, fit.grid) is fit.grid
    assert compare_fill(white, chosen, fit.grid) == pytest.approx(1.0, abs=0.1)


def fit_smooth_errors(grid, centers_px):
    """Return the coefficients of a cubic polynomial, (10, 2), of how far centers are off, in px.

    Places are in units of half of the image's longer side.
    """
    distances, nearest = cKDTree(centers_px).query(grid.centers_raw_px)
    known = distances < 1.0
    errors = (grid.centers_raw_px - centers_px[nearest])[known]
    size = np.array(grid.image_size)
    x, y = ((grid.centers_raw_px[known] - size / 2.0) / (size.max() / 2.0)).T
    terms = [x**i * y**j for n in range(4) for i, j in zip(range(n, -1, -1), range(n + 1))]  # noqa: B905
    return np.linalg.lstsq(np.stack(terms, axis=1), errors, rcond=None)[0]


def test_shading_behind_a_tilted_array_does_not_bend_the_grid():
    """Micro images behind a tilted array differ in size.

    Under a shading a larger outline looks like a shifted one. A match without the size leaves a
    quadratic error of 0.013 px, and one that knows nothing of the light of neighbors and of wide
    rims leaves a stretch of 0.03 px.
    """
    simulation = Simulation(SimulationOptions(camera="mini-real", frames=2, seed=91))
    fit = fit_grid_to_white(simulation.render_white())
    found = fit_smooth_errors(fit.grid, simulation.optics.camera.grid.centers_raw_px)
    assert np.abs(found[1:3]).max() < 0.015  # linear; 0.005 is the noise of jittered lenses
    assert np.abs(found[3:6]).max() < 0.008  # quadratic


def test_shading_does_not_change_the_ratios_of_the_discs():
    """The ratios tell the focal planes of the lens types relative to each other.

    Discs that have to explain how oblique light makes the rim darker have ratios that are wrong by
    1.5 %.
    """
    shaded = Imperfections(cos4=True)
    simulation = Simulation(
        SimulationOptions(camera="mini", frames=2, seed=91, imperfections=shaded)
    )
    discs = fit_grid_to_white(simulation.render_white()).grid.discs
    true = simulation.optics.camera.grid.discs
    ratios = np.array(discs.micro_px) / np.array(true.micro_px)
    assert discs.shading_px2 > 0.0
    assert np.ptp(ratios) < 0.005
    assert np.abs(ratios - 1.0).max() < 0.03
    assert abs(discs.main_px / true.main_px - 1.0) < 0.01


def test_shading_of_an_independent_renderer_does_not_bend_the_grid(shared_data):
    folder = shared_data / "independent" / "tilted"
    if not folder.is_dir():
        pytest.skip("the independent recordings are not here")
    fit = fit_grid_to_white(open_frames(folder / "white.png").read(0))
    found = fit_smooth_errors(fit.grid, np.load(folder / "truth" / "micro_images.npy")[:, 3:5])
    assert np.abs(found[1:3]).max() < 0.012
    assert np.abs(found[3:6]).max() < 0.005  # 0.0145 without the size of micro images
