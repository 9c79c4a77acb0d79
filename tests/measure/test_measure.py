"""`measure` on micro images whose texture and places are known exactly."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.errors import InputError
from lifcal.measure import (
    MeasureOptions,
    MeasureStatus,
    Patches,
    cut_patches,
    defocus_terms,
    measure,
    measurement,
)
from tests.measure import cases

SLOPE_SIGMA = 0.05
EXACT_PX = 2e-3
"""The texture's coefficients are 0.75 px apart and held together a little: no better than this."""


def run(case, options=cases.OPTIONS, **more):
    return measure(case.images, case.patches, case.grid, case.optics, SLOPE_SIGMA, options, **more)


def test_places_are_right(rng):
    case = cases.make_case(rng)
    found = run(case)
    assert (found.status == MeasureStatus.MEASURED).all()
    errors = case.errors(found.places_px)
    assert np.abs(errors).max() < EXACT_PX
    # it had something to do
    assert np.abs(case.errors(case.images.places_px)).max() > 0.2
    np.testing.assert_array_equal(found.points_raw_px, found.places_px)
    assert not found.places_px.flags.writeable


def test_images_nearer_than_the_reference_are_not_drawn_inward(rng, monkeypatch):
    """A pixel is narrower on the texture of an image at a larger scale, and such an image sharper.

    At the rim of a micro image the outer part of the window is cut off, so that what is sharper
    than the texture about a spot in the middle would seem to lie elsewhere.
    """
    case = cases.make_case(rng, n_tracks=8, n_images=60, start_px=0.05)
    n = len(case.true_px)
    scales = np.where(np.arange(n) % 2 == 0, 0.8, 1.25)
    angles = rng.uniform(0.0, 2.0 * np.pi, n)
    outward = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    true = case.grid.centers_raw_px[case.images.lenses] + (cases.RADIUS_PX - 1.5) * outward
    images = replace(
        case.images,
        places_px=true + rng.uniform(-0.05, 0.05, (n, 2)),
        jacobians=scales[:, None, None] * np.eye(2),
        tilts=np.zeros((n, 2)),
    )
    corners = np.rint(images.places_px).astype(np.int64) - cases.OPTIONS.patch_side // 2
    spots = [lambda st: 0.2 + 0.6 * np.exp(-0.5 * np.sum(st**2, axis=-1) / 1.4**2)] * 8
    case = replace(
        case,
        images=images,
        true_px=true,
        patches=Patches(corners, case.patches.values),
        textures=spots,
    )
    case = case.with_values(cases.render(case))

    def drawn_outward_px():
        found = run(case)
        assert (found.status == MeasureStatus.MEASURED).all()
        off = np.sum(case.errors(found.places_px) * outward, axis=1)
        return off[scales < 1.0].mean() - off[scales > 1.0].mean()

    with_width = drawn_outward_px()
    monkeypatch.setattr(measurement, "PIXEL_VARIANCE_PX2", 0.0)
    without = drawn_outward_px()
    assert abs(without) > 0.004
    assert abs(with_width) < 0.2 * abs(without)


def make_defocused_case(rng, radius):
    """Return a case with lenses that blur by a disc of this radius in px, and which those are.

    The pixels are still those of sharp images.
    """
    case = cases.make_case(rng, n_tracks=6, n_images=40, start_px=0.05)
    lens_types = np.zeros(len(case.grid), np.int64)
    lens_types[case.images.lenses] = np.arange(len(case.true_px)) % 2
    flat = np.zeros((2, 200), np.float32)
    optics = replace(
        case.optics,
        lens_types=lens_types,
        weights=flat + np.float32(1.0),
        shifts_px=flat,
        drifts_px=flat,
        focal_rhos=np.array([0.3, 0.3 + radius / 6.0]),  # images are at 0.3: 6 px for each unit
    )
    return replace(case, optics=optics), lens_types[case.images.lenses] == 1


def test_places_in_blurred_images_are_less_certain(rng):
    case, blurred = make_defocused_case(rng, 0.9)
    plain = run(case).covariances_px2
    options = replace(cases.OPTIONS, blur_error=0.3)
    wider = run(case, options).covariances_px2
    added = (0.3 * 0.9**2 / options.window_px) ** 2 * np.eye(2)
    np.testing.assert_allclose(wider[blurred], plain[blurred] + added, rtol=1e-6)
    np.testing.assert_array_equal(wider[~blurred], plain[~blurred])


def test_blur_by_defocus_is_that_of_a_disc(rng, monkeypatch):
    """Images of a lens type out of focus: the texture is blurred by a quarter of the square."""
    radius = 1.2
    case, out_of_focus = make_defocused_case(rng, radius)
    angles = np.linspace(0.0, 2.0 * np.pi, 9)[:-1]
    disc = np.concatenate(  # rings of equal area
        [r * radius * np.stack([np.cos(angles), np.sin(angles)], axis=1) for r in RINGS]
    )
    blurred = np.mean([cases.render(replace(case, true_px=case.true_px + d)) for d in disc], axis=0)
    values = np.where(out_of_focus[:, None, None], blurred, cases.render(case))
    case = case.with_values(values)
    options = replace(cases.OPTIONS, most_blur_px=2.0)
    noises = run(case, options).track_noises
    monkeypatch.setattr(measurement, "defocus_terms", half_the_blur)
    assert (run(case, options).track_noises > 1.5 * noises).mean() > 0.8


RINGS = np.sqrt((np.arange(3) + 0.5) / 3.0)


def half_the_blur(images, optics):
    bends, blurs = defocus_terms(images, optics)
    return bends, np.sqrt(0.5) * blurs


def test_no_pixel_locking(rng):
    """Errors do not depend on where in a pixel a point lies."""
    case = cases.make_case(rng, n_tracks=10, n_images=40)
    errors = case.errors(run(case).places_px)
    angle = 2.0 * np.pi * case.true_px
    for axis in range(2):
        design = np.column_stack([np.cos(angle[:, axis]), np.sin(angle[:, axis])])
        wave = np.linalg.lstsq(design, errors[:, axis], rcond=None)[0]
        assert np.hypot(*wave) < 2e-4
    # The checker can fail: the same with images interpolated to whole pixels.
    locked = errors - 0.02 * np.sin(angle)
    design = np.column_stack([np.cos(angle[:, 0]), np.sin(angle[:, 0])])
    assert np.hypot(*np.linalg.lstsq(design, locked[:, 0], rcond=None)[0]) > 0.01


def test_sigma_is_that_of_the_errors(rng):
    case = cases.make_case(rng, n_tracks=12, n_images=50)
    noise = 0.04
    noisy = case.with_values(
        case.patches.values + rng.normal(scale=noise, size=case.patches.values.shape)
    )
    found = run(noisy, MeasureOptions())
    good = found.status == MeasureStatus.MEASURED
    assert good.mean() > 0.97
    assert found.track_noises == pytest.approx(np.full(12, noise), rel=0.08)
    errors = case.errors(found.places_px)[good]
    roots = np.linalg.cholesky(found.covariances_px2[good])
    whitened = np.linalg.solve(roots, errors[:, :, None])[:, :, 0]
    # What the lens model leaves is part of sigma, and is not there: noise must outweigh it.
    assert np.median(np.sqrt(found.covariances_px2[good, 0, 0])) > 0.05
    # robust, because a few in a hundred lie on a weak texture
    spread = 1.4826 * np.median(np.abs(whitened), axis=0)
    assert (spread > 0.8).all()
    assert (spread < 1.25).all()


@pytest.mark.parametrize("covered", ["a veil", "all"])
def test_an_image_of_something_else_is_flagged(covered, rng):
    case = cases.make_case(rng)
    other = cases.render(case, [cases.make_texture(rng) for _ in case.textures])
    values = case.patches.values.copy()
    wrong = np.arange(3, len(values), 24)
    share = 0.25 if covered == "a veil" else 1.0
    values[wrong] += share * (other[wrong] - values[wrong])
    values += rng.normal(scale=0.004, size=values.shape).astype(np.float32)
    found = run(case.with_values(values), MeasureOptions())
    assert (found.status[wrong] != MeasureStatus.MEASURED).all()
    if covered == "a veil":
        # else it has no place or gain at all
        assert (found.status[wrong] == MeasureStatus.NO_AGREEMENT).all()
    assert np.isnan(found.places_px[wrong]).all()
    rest = np.setdiff1d(np.arange(len(values)), wrong)
    assert (found.status[rest] == MeasureStatus.MEASURED).mean() > 0.97
    off = np.linalg.norm(case.errors(found.places_px)[rest], axis=1)
    assert np.nanmedian(off) < 0.02


def test_unknown_pixels_are_left_out(rng):
    case = cases.make_case(rng)
    values = case.patches.values.copy()
    values[rng.random(values.shape) < 0.2] = np.nan
    found = run(case.with_values(values))
    assert (found.status == MeasureStatus.MEASURED).all()
    # fewer pixels hold the texture
    assert np.abs(case.errors(found.places_px)).max() < 2.0 * EXACT_PX
    values[5] = np.nan
    found = run(case.with_values(values))
    assert found.status[5] == MeasureStatus.TOO_FEW_PIXELS
    assert np.isnan(found.places_px[5]).all()


def test_too_far_from_the_prediction_is_not_the_point(rng):
    case = cases.make_case(rng, start_px=0.1)
    places = case.images.places_px.copy()
    places[7] = case.true_px[7] + [0.9, -0.4]
    moved = replace(case, images=replace(case.images, places_px=places))
    found = run(moved)
    assert found.status[7] == MeasureStatus.MEASURED
    assert np.abs(case.errors(found.places_px)).max() < EXACT_PX
    found = run(moved, replace(cases.OPTIONS, most_shift_px=0.6))
    assert found.status[7] == MeasureStatus.RAN_AWAY


@pytest.mark.parametrize("start", [0.0, -0.01])
def test_slopes_are_found(start, rng):
    """Surfaces that do not face the reference view, from a start that does or leans away."""
    case = cases.make_case(rng, n_images=40, slope=0.02)
    options = replace(cases.OPTIONS, rounds=10)
    slopes = np.full_like(case.true_slopes, start)
    found = run(case, options, slopes=slopes)
    assert (found.status == MeasureStatus.MEASURED).all()
    # three px of tilt for each unit of slope and px, over 4.5 px: 0.002 is 0.03 px at the rim
    np.testing.assert_allclose(found.slopes, case.true_slopes, atol=2e-3)
    assert np.abs(case.errors(found.places_px)).max() < 2.0 * EXACT_PX
    # A prior that is sure of another slope is believed: the images then do not agree so well.
    stiff = measure(case.images, case.patches, case.grid, case.optics, 1e-9, options)
    assert np.abs(stiff.slopes).max() < 1e-3
    assert np.median(stiff.track_noises) > 3.0 * np.median(found.track_noises)
    np.testing.assert_array_equal(slopes, start)


def test_known_slopes_are_held_track_by_track(rng):
    """A marker's plane is known; the surface beside it is not."""
    case = cases.make_case(rng, n_images=40, slope=0.02)
    options = replace(cases.OPTIONS, rounds=10)
    means = np.zeros_like(case.true_slopes)
    means[0] = 0.5 * case.true_slopes[0]
    sigmas = np.full(len(means), SLOPE_SIGMA)
    sigmas[0] = 1e-9
    found = measure(
        case.images,
        case.patches,
        case.grid,
        case.optics,
        sigmas,
        options,
        slopes=case.true_slopes,
        slope_means=means,
    )
    np.testing.assert_allclose(found.slopes[0], means[0], atol=1e-4)
    np.testing.assert_allclose(found.slopes[1:], case.true_slopes[1:], atol=2e-3)


def common_displacement(case, found, starts):
    """How far a track's images went along the surface together, in px, by their information."""
    slopes = found.slopes[case.images.tracks]
    affine = case.images.jacobians + case.images.tilts[:, :, None] * slopes[:, None, :]
    out = []
    for track in range(case.images.tracks.max() + 1):
        here = (case.images.tracks == track) & (found.status == MeasureStatus.MEASURED)
        weights = np.linalg.inv(
            found.covariances_px2[here] - MeasureOptions().systematic_px ** 2 * np.eye(2)
        )
        normal = np.einsum("nji,njk,nkl->il", affine[here], weights, affine[here])
        moved = (found.places_px - starts)[here]
        side = np.einsum("nji,njk,nk->i", affine[here], weights, moved)
        out.append(np.linalg.solve(normal, side))
    return np.array(out)


@pytest.mark.parametrize("rounds", [1, 3, 15])
def test_the_origin_does_not_drift(rounds, rng):
    case = cases.make_case(rng)
    found = run(case, replace(cases.OPTIONS, rounds=rounds))
    # next to the texture's sigma the systematic one is large: digits are lost in taking it off
    assert np.abs(common_displacement(case, found, case.images.places_px)).max() < 1e-5


def test_anchors_say_where_the_origin_is(rng):
    """Two images whose places are known are enough for absolute places of all."""
    case = cases.make_case(rng)
    anchored = np.arange(len(case.images)) % 24 < 2
    known = np.where(anchored[:, None], case.true_px, np.nan)
    found = run(case, found_px=known, anchored=anchored)
    assert np.abs(found.places_px - case.true_px).max() < 2.0 * EXACT_PX
    # without them, the wrong predictions have a say
    free = run(case, found_px=known)
    assert np.abs(free.places_px - case.true_px).max() > 0.03


def test_an_earlier_measurement_holds_the_origin(rng):
    """After an adjustment the prediction is another; the point on the surface stays the same."""
    case = cases.make_case(rng)
    first = run(case)
    along = np.array([0.4, -0.25])
    moved = case.images.places_px + case.affine() @ along
    again = replace(case, images=replace(case.images, places_px=moved))
    found = run(again, found_px=first.places_px)
    np.testing.assert_allclose(found.places_px, first.places_px, atol=EXACT_PX)
    # without it, the origin is where the new prediction says
    free = run(again)
    off = common_displacement(case, free, first.places_px)
    # images weigh a little differently with the window elsewhere
    np.testing.assert_allclose(off, np.broadcast_to(along, off.shape), atol=0.02)
    # an image that was not measured starts at its prediction
    gaps = first.places_px.copy()
    gaps[::5] = np.nan
    found = run(again, found_px=gaps)
    assert (found.status == MeasureStatus.MEASURED).all()
    assert np.abs(case.errors(found.places_px)).max() < EXACT_PX


def test_tracks_do_not_touch_each_other(rng):
    case = cases.make_case(rng)
    whole = run(case)
    part = case.images.tracks == 4
    images = case.images.select(part)
    alone = measure(
        images,
        Patches(case.patches.corners_px[part], case.patches.values[part]),
        case.grid,
        case.optics,
        SLOPE_SIGMA,
        cases.OPTIONS,
    )
    np.testing.assert_array_equal(alone.places_px, whole.places_px[part])
    assert alone.slopes.shape == (1, 2)


def test_cut_patches(rng):
    image = rng.uniform(size=(50, 60)).astype(np.float32)
    image[20, 30] = np.nan
    places = np.array([[30.4, 20.4], [0.2, 49.0], [-40.0, 10.0]])
    options = MeasureOptions(window_px=2.0)
    patches = cut_patches(image, places, options)
    side = options.patch_side
    assert patches.values.shape == (3, side, side)
    for k in range(3):
        for j in range(side):
            for i in range(side):
                x, y = patches.corners_px[k] + (i, j)
                value = patches.values[k, j, i]
                if 0 <= x < 60 and 0 <= y < 50:
                    np.testing.assert_array_equal(value, image[y, x])
                else:
                    assert np.isnan(value)
    np.testing.assert_array_equal(patches.corners_px[0] + side // 2, [30, 20])
    assert np.isnan(patches.values[2]).all()


def test_defocus_terms(rng):
    case = cases.make_case(rng, n_tracks=2, n_images=5)
    bends, blurs = defocus_terms(case.images, case.optics)
    np.testing.assert_array_equal(bends, 0.0)
    np.testing.assert_array_equal(blurs, 0.0)
    sharp = replace(case.optics, focal_rhos=np.array([0.4]))
    bends, blurs = defocus_terms(case.images, sharp)
    np.testing.assert_allclose(bends, (0.4 - 0.3) / 0.4)
    np.testing.assert_allclose(blurs, 6.0 * (0.4 - 0.3))


def test_refused(rng):
    case = cases.make_case(rng, n_tracks=2, n_images=5)
    with pytest.raises(InputError, match="9 patches for 10"):
        run(replace(case, patches=Patches(case.patches.corners_px[:9], case.patches.values[:9])))
    with pytest.raises(InputError, match="sorted by track"):
        run(replace(case, images=case.images.select(np.arange(10)[::-1])))
    with pytest.raises(InputError, match="window_px"):
        MeasureOptions(window_px=1.0)
    with pytest.raises(InputError, match="rounds"):
        MeasureOptions(rounds=0)
    with pytest.raises(InputError, match="points is 49, needs 50 or more"):
        MeasureOptions(points=49)
    with pytest.raises(InputError, match="views is 1, needs 2 or more"):
        MeasureOptions(views=1)
    with pytest.raises(InputError, match="most_blur_px is nan, needs a positive number"):
        MeasureOptions(most_blur_px=float("nan"))
    with pytest.raises(InputError, match="scale_limits"):
        MeasureOptions(scale_limits=(1.1, 1.5))


def test_small_micro_images_get_small_windows():
    """A share of the radius, not below what a texture needs and not above what is asked for."""
    assert MeasureOptions().choose_window(8.0) == pytest.approx(0.46 * 8.0)
    assert MeasureOptions().choose_window(4.0) == 2.5
    assert MeasureOptions().choose_window(30.0) == 4.5
    assert MeasureOptions(window_px=6.0, window_share=0.3).choose_window(18.0) == pytest.approx(5.4)
