"""Virtual depth and focused images against truth: exact pinhole raws, then the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import MicroLensGrid
from lifcal.camera.apertures import OverlapDiscs
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.virtual import (
    DepthFlag,
    DepthOptions,
    LensOptics,
    estimate_virtual_depth,
    find_depth_range,
    make_focused_image,
)
from lifcal.virtual._kernels_edges import EdgeMaps, weigh_sides
from tests.virtual.scenes import make_grid, make_raw, make_texture

INNER = np.s_[20:-20, 20:-20]


def constant(rho):
    return lambda points: np.full(points.shape[:-1], rho)


@pytest.mark.parametrize("layout", ["hexagonal-rows", "square"])
@pytest.mark.parametrize("u", [2.7, 3.13, 4.6, -3.4])
def test_flat_surface(layout, u, rng):
    grid = make_grid(layout)
    # Waves of four raw pixels and more: what a lens can show.
    raw = make_raw(grid, constant(1.0 / u), make_texture(rng, shortest_px=4.0 * abs(u)))
    depth = estimate_virtual_depth(raw, grid)
    low, high = depth.depth_range
    assert low < u < high
    error = depth.u[INNER] / u - 1.0
    assert np.isfinite(error).mean() > 0.98
    # Without noise, interpolation of the raw is what is left: a third of the 0.3 % that is asked.
    assert abs(np.nanmedian(error)) < 1e-3
    assert np.nanmedian(np.abs(error)) < 2e-3


def test_no_pixel_locking(rng):
    """The median error does not swing as the surface moves by parts of a level and of a pixel."""
    grid = make_grid()
    texture = make_texture(rng)
    options = DepthOptions(depth_range=(2.4, 4.4))
    biases = []
    for u in np.linspace(3.0, 3.3, 7):
        raw = make_raw(grid, constant(1.0 / u), texture)
        depth = estimate_virtual_depth(raw, grid, options)
        biases.append(np.nanmedian(depth.u[INNER]) / u - 1.0)
    assert np.ptp(biases) < 1e-3


def test_slanted_surface(rng):
    grid = make_grid()

    def rho_at(points):
        return 0.3 + 2e-4 * (points[..., 0] - 150.0)

    raw = make_raw(grid, rho_at, make_texture(rng))
    depth = estimate_virtual_depth(raw, grid)
    rows, cols = np.mgrid[: depth.u.shape[0], : depth.u.shape[1]]
    points = (np.stack([cols, rows], axis=-1) + 0.5) * 2.0 - 0.5
    error = (depth.u * rho_at(points) - 1.0)[INNER]
    assert np.nanmedian(np.abs(error)) < 3e-3
    # No trend along the slope.
    left, right = error[:, :30], error[:, -30:]
    assert abs(np.nanmedian(left) - np.nanmedian(right)) < 2e-3


def test_step_edge_is_sharp(rng):
    grid = make_grid()
    texture = make_texture(rng)

    def rho_at(points):
        return np.where(points[..., 0] < 150.0, 0.38, 0.28)

    raw = make_raw(grid, rho_at, texture)
    depth = estimate_virtual_depth(raw, grid, DepthOptions(depth_range=(2.2, 4.4)))
    left, right = depth.filled[30:-30, 30:66], depth.filled[30:-30, 84:120]
    assert np.mean(np.abs(left * 0.38 - 1.0) > 0.05) < 0.03
    assert np.mean(np.abs(right * 0.28 - 1.0) > 0.05) < 0.03
    # beside the nearer surface some lenses do not see the farther one
    hidden = (depth.flags[30:-30] & DepthFlag.OCCLUSION) > 0
    assert hidden[:, 60:76].any(axis=1).mean() > 0.5
    assert hidden[:, 30:50].mean() < 0.01
    assert hidden[:, 100:].mean() < 0.01


def make_occluded_raw(grid, near_rho, far_rho, edge_x, textures):
    """Return a raw of a near surface on the left of `edge_x`, which hides a far one behind it."""
    width, height = grid.image_size
    rows, cols = np.mgrid[:height, :width]
    pixels = np.stack([cols, rows], axis=-1).astype(np.float64)
    labels = grid.label_image()
    centers = grid.centers_raw_px[np.maximum(labels, 0)]
    near, far = (centers + (pixels - centers) / rho for rho in (near_rho, far_rho))
    hit = near[..., 0] < edge_x
    values = np.where(hit, textures[0](near), textures[1](far))
    return np.where(labels >= 0, values, 0.0).astype(np.float32)


@pytest.mark.parametrize("quality", ["full", "fast"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("far_rho", [0.34, 0.31])
def test_a_near_surface_ends_where_the_image_says(far_rho, sign, quality, rng):
    """The background has little texture, so that windows that see the outline take its depth."""
    grid = make_grid()
    strong, weak = make_texture(rng), make_texture(rng)
    textures = (lambda points: strong(points) + 0.3, lambda points: 0.4 + 0.15 * weak(points))
    raw = make_occluded_raw(grid, sign * 0.28, sign * far_rho, 150.0, textures)
    raw += rng.normal(scale=0.004, size=raw.shape).astype(np.float32)
    ends = sorted((sign * 2.6, sign * 4.0))
    options = DepthOptions(depth_range=tuple(ends), quality=quality)
    depth = estimate_virtual_depth(raw, grid, options)
    true = np.where((np.arange(150) + 0.5) * 2.0 - 0.5 < 150.0, sign * 0.28, sign * far_rho)
    band = np.s_[25:-25, 71:80]  # the edge is between columns 74 and 75
    known = depth.known[band]
    off = np.abs(depth.u[band] * true[71:80] - 1.0)
    assert known.mean() > 0.6
    assert np.mean(off[known] > 0.02) < 0.12
    # Edges of the map are within a pixel of the true one.
    near = np.abs(depth.filled[25:-25]) > 2.0 / (0.28 + far_rho)
    assert abs(np.median(near[:, 55:95].sum(axis=1)) - 20.0) <= 1.0
    # The far side is said to be hidden from some lenses, the near side is not.
    hidden = (depth.flags & DepthFlag.OCCLUSION) > 0
    assert hidden[25:-25, 76:79].mean() > 0.8
    assert hidden[25:-25, 68:73].mean() < 0.1


def test_lenses_behind_a_near_surface_are_left_out(rng):
    """Beside the edge the far surface agrees only among the lenses that see it."""
    grid = make_grid()
    near_rho, far_rho = 0.25, 0.38
    textures = (make_texture(rng), make_texture(rng))
    raw = make_occluded_raw(grid, near_rho, far_rho, 150.0, textures)
    optics = LensOptics.from_grid(grid)
    shape = (130, 150)
    maps = EdgeMaps(*(np.zeros(shape, np.float32) for _ in EdgeMaps._fields))
    maps.near[:], maps.far[:] = near_rho, far_rho
    wanted = np.zeros(shape, bool)
    wanted[25:-25, 76:79] = True
    evidence = []
    for side in (-1.0, np.where(np.arange(150) < 75, 1.0, -1.0)):
        maps.side[:] = side
        weigh_sides(raw, grid.index.table, optics.pack(), 2.0, 1e-5, wanted, maps)
        evidence.append(maps.evidence[wanted].copy())
    # Negative is far. Hidden lenses show the near texture, so with them nothing agrees.
    change = evidence[1] - evidence[0]
    changed = np.abs(change) > 0.01
    assert changed.mean() > 0.2
    assert np.median(change[changed]) < -1.0
    assert np.median(evidence[1][changed]) < -1.0


@pytest.mark.parametrize("scale", [0.25, 0.4, 1.0])
def test_scale(scale, rng):
    grid = make_grid()
    # Long waves: these raws have no pixel width whose blur could be undone.
    texture = make_texture(rng, shortest_px=16.0)
    raw = make_raw(grid, constant(1.0 / 3.2), texture)
    depth = estimate_virtual_depth(raw, grid, DepthOptions(scale=scale))
    assert depth.u.shape == (round(260 * scale), round(300 * scale))
    focused = make_focused_image(raw, grid, depth)
    rows, cols = np.mgrid[: depth.u.shape[0], : depth.u.shape[1]]
    points = (np.stack([cols, rows], axis=-1) + 0.5) / scale - 0.5
    away = (
        (points > 30.0).all(axis=-1) & (points[..., 0] < 270.0) & (points[..., 1] < 230.0)
    ) & focused.valid
    difference = focused.image[away] - texture(points)[away]
    spread = texture(points)[away].std()
    # Half a pixel of misplacement would leave a tenth of the contrast and more.
    assert np.sqrt(np.mean(difference**2)) < 0.1 * spread


def test_color(rng):
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / 3.2), make_texture(rng))
    depth = estimate_virtual_depth(raw, grid)
    gray = make_focused_image(raw, grid, depth)
    alike = make_focused_image(np.stack([raw, raw, raw], axis=-1), grid, depth)
    for channel in range(3):
        np.testing.assert_allclose(alike.image[..., channel], gray.image, atol=1e-6)
    # Detail has the same share in all channels: a tint stays that tint.
    tinted = make_focused_image(np.stack([raw, 0.5 * raw, 0.0 * raw], axis=-1), grid, depth)
    np.testing.assert_allclose(tinted.image[..., 1], 0.5 * tinted.image[..., 0], atol=1e-6)
    np.testing.assert_array_equal(tinted.image[..., 2], 0.0)


def test_no_texture_is_said(rng):
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / 3.2), make_texture(rng))
    raw[:, 150:] = 0.5
    raw += rng.normal(scale=0.01, size=raw.shape).astype(np.float32)
    depth = estimate_virtual_depth(raw, grid)
    blank = depth.flags[30:-30, 100:140]
    assert np.mean((blank & DepthFlag.NO_TEXTURE) > 0) > 0.9
    assert np.isnan(depth.u[30:-30, 100:140]).mean() > 0.9
    assert np.isfinite(depth.u[30:-30, 20:55]).mean() > 0.95
    assert np.isfinite(depth.filled).all()


def test_range_needs_texture(rng):
    grid = make_grid()
    blank = (0.5 + rng.normal(scale=0.01, size=(260, 300))).astype(np.float32)
    with pytest.raises(EstimationError, match="clear virtual depth"):
        find_depth_range(blank, grid)


def test_black_image_has_no_depth():
    grid = make_grid()
    black = np.zeros((260, 300), np.float32)
    depth = estimate_virtual_depth(black, grid, DepthOptions(depth_range=(2.4, 4.0)))
    assert not depth.known.any()


def test_what_is_given_is_within_its_limits(rng):
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / 3.2), make_texture(rng))
    raw[:, 150:] = 0.5
    raw += rng.normal(scale=0.05, size=raw.shape).astype(np.float32)
    depth = estimate_virtual_depth(raw, grid, DepthOptions(depth_range=(2.6, 3.9)))
    given = depth.known
    assert given.any()
    assert (depth.sigma[given] < 0.03 * depth.u[given]).all()
    assert depth.u[given].min() > 2.4
    assert depth.u[given].max() < 4.2


def test_out_of_range_is_said(rng):
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / 3.2), make_texture(rng))
    depth = estimate_virtual_depth(raw, grid, DepthOptions(depth_range=(4.5, 7.0)))
    assert np.mean((depth.flags[INNER] & DepthFlag.OUT_OF_RANGE) > 0) > 0.5


@pytest.mark.parametrize("u", [3.2, -3.2])
def test_a_narrow_range_has_its_ends(u, rng):
    """Inside it nothing is out of range, whatever the sign."""
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / u), make_texture(rng))
    ends = (0.98 * u, 1.02 * u)
    depth = estimate_virtual_depth(raw, grid, DepthOptions(depth_range=(min(ends), max(ends))))
    assert np.mean((depth.flags[INNER] & DepthFlag.OUT_OF_RANGE) > 0) < 0.02


def test_same_input_same_output(rng):
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / 3.2), make_texture(rng))
    first, second = (estimate_virtual_depth(raw, grid) for _ in range(2))
    np.testing.assert_array_equal(first.filled, second.filled)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale"),
        ({"depth_range": (2.0, -3.0)}, "one sign"),
        ({"depth_range": (3.0, 3.0)}, "different"),
        ({"depth_range": (0.5, 3.0)}, "beyond 1"),
        ({"most_sigma": 0.0}, "most_sigma"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        DepthOptions(**options)


def test_unknown_quality():
    with pytest.raises(ConfigError, match=r"unknown quality 'fsat'.*Did you mean 'fast'"):
        DepthOptions(quality="fsat")


@pytest.mark.parametrize("u", [3.2, -3.2])
def test_range_for_the_next_frame(u, rng):
    grid = make_grid()
    raw = make_raw(grid, constant(1.0 / u), make_texture(rng))
    depth = estimate_virtual_depth(
        raw, grid, DepthOptions(depth_range=tuple(sorted((2 * u, u / 2))))
    )
    low, high = depth.find_range(0.1)
    assert low < u < high
    np.testing.assert_allclose(sorted(np.abs([low, high])), [3.2 / 1.1, 3.2 * 1.1], rtol=0.02)
    unknown = replace(depth, u=np.full_like(depth.u, np.nan))
    assert unknown.find_range() is None


def test_wrong_images():
    grid = make_grid()
    with pytest.raises(InputError, match="float32"):
        estimate_virtual_depth(np.zeros((260, 300)), grid)
    with pytest.raises(InputError, match="shape"):
        estimate_virtual_depth(np.zeros((26, 30), np.float32), grid)
    with pytest.raises(InputError, match="NaN"):
        estimate_virtual_depth(np.full((260, 300), np.nan, np.float32), grid)


def test_tables_know_the_optics():
    grid = make_grid(n_types=3, focal_planes=(2.6, 3.2, 4.4))
    grid = replace(grid, discs=OverlapDiscs(5.7, (2.9, 2.3, 1.7)))
    optics = LensOptics.from_grid(grid)
    assert 2.8 < optics.radius_px < 5.7 + 2.9
    # In the core nothing moves; further out the inner side is brighter.
    core = int((5.7 - 2.9 - 0.3) * 8)
    assert (optics.shifts_px[:, :core] == 0.0).all()
    assert (optics.shifts_px[:, int(optics.radius_px * 8)] > 0.0).all()
    np.testing.assert_allclose(optics.drifts_px[:, : core - 1], 0.0, atol=1e-6)
    assert (optics.drifts_px[:, int(5.0 * 8)] > 0.0).all()
    assert (np.diff(optics.weights, axis=1) <= 1e-6).all()
    blurred = LensOptics.from_grid(grid, blur_variance_px2=1.0 / 12.0)
    np.testing.assert_allclose(blurred.drifts_px, 2.0 * optics.drifts_px, rtol=1e-5)


def test_least_blur_is_that_of_the_sharpest_type():
    optics = LensOptics.from_grid(make_grid(n_types=3, focal_planes=np.array([2.0, 2.5, 4.0])))
    depths = np.array([2.0, 2.2, 5.0], np.float32)
    expected = optics.blur_px * np.array([0.0, 1 / 2.0 - 1 / 2.2, 1 / 4.0 - 1 / 5.0])
    np.testing.assert_allclose(optics.compute_least_blur(1 / depths), expected, atol=1e-5)
    unknown = LensOptics.from_grid(make_grid(n_types=3))
    # what is not known is not sharp
    np.testing.assert_array_equal(unknown.compute_least_blur(1 / depths), 1.0)


def test_sigma_grows_where_no_type_is_sharp(rng):
    """One raw: with focal planes far off its depth, sigma has at least the part for blur."""
    grid = make_grid(n_types=3)
    image = make_raw(grid, constant(1 / 3.0), make_texture(rng, shortest_px=12.0))
    options = DepthOptions(depth_range=(2.5, 3.6))
    sharp, blurred = (
        estimate_virtual_depth(image, replace(grid, focal_planes=np.array(planes)), options)
        for planes in ([2.9, 3.0, 3.1], [8.0, 9.0, 10.0])
    )
    least = 0.0005 * LensOptics.from_grid(grid).blur_px * (1 / 3.0 - 1 / 8.0)
    assert np.nanmedian(sharp.sigma[INNER] / 3.0) < 0.5 * least
    assert np.nanmedian(blurred.sigma[INNER] / 3.0) > 0.9 * least


def test_a_list_of_centers_will_do(rng):
    grid = make_grid()
    listed = MicroLensGrid.from_centers(
        grid.centers_raw_px, grid.image_size, radius_px=grid.radius_px
    )
    raw = make_raw(grid, constant(1.0 / 3.2), make_texture(rng))
    expected = estimate_virtual_depth(raw, grid)
    found = estimate_virtual_depth(raw, listed)
    np.testing.assert_allclose(found.u, expected.u, rtol=1e-3)
