"""What a surface that recedes changes within a window: against the camera, and against rays."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lifcal.camera import ArrayTilt, NoDistortion
from lifcal.measure import MeasureStatus, compute_tangents, measure, predict
from lifcal.measure import _kernels as kernels
from lifcal.reconstruction import Reconstruction
from lifcal.simulate import build_camera
from tests.measure import cases

SLOPE_SIGMA = 0.05


@pytest.mark.parametrize("tilt", [None, (4e-5, -3e-5)])
def test_the_texture_of_a_plane_is_where_the_camera_sees_it(tilt, rng):
    """Points of a steep plane, projected by the camera, are found at their places again."""
    camera = replace(
        build_camera("mini").camera, tilt=None if tilt is None else ArrayTilt(*tilt)
    )
    rotations = Rotation.from_rotvec(rng.normal(scale=0.2, size=(4, 3))).as_matrix()
    depth = rng.uniform(450.0, 700.0, 12)
    places = rng.uniform(0.4, 0.6, (12, 2)) * camera.image_size
    xy = (places - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
    geometry = Reconstruction(
        camera.array,
        NoDistortion(),
        rotations,
        rng.normal(scale=20.0, size=(4, 3)),
        np.column_stack([xy, depth]),
        tilt=np.zeros(0) if camera.tilt is None else camera.tilt.as_vector(),
    )
    camera = replace(camera, distortion=NoDistortion())
    points, references = np.arange(12), np.zeros(12, np.int64)
    tangents = compute_tangents(geometry, points, references)
    slope = np.array([0.004, -0.006])
    tracks, views = np.repeat(points, 4), np.tile(np.arange(4), 12)
    cam = geometry.cam_points(tracks, views)
    lenses = camera.grid.nearest(camera.virtual_from_cam(cam)[:, :2])
    images = predict(geometry, camera.grid, tangents, tracks, views, lenses)
    found, plain = [], []
    st = rng.uniform(-5.0, 5.0, (len(images), 2))
    onto = np.column_stack([st, st @ slope])
    world = geometry.points_world_mm[tracks] + np.einsum("nij,nj->ni", tangents[tracks], onto)
    moved = np.einsum("nij,nj->ni", rotations[views], world) + geometry.translations_mm[views]
    seen = camera.project(moved, lenses)
    inverse, relief = np.empty((2, 2)), np.empty(kernels.RELIEF_COLUMNS)
    for k in range(len(images)):
        kernels.invert_affine(images.jacobians[k], images.tilts[k], slope, inverse)
        kernels.find_relief(images.perspectives[k], np.zeros(3), 0.0, slope, inverse, relief)
        pixels = np.zeros((1, kernels.PIXEL_COLUMNS))
        pixels[0, :2] = seen[k]
        found.append(kernels.find_on_texture(pixels, 0, *images.places_px[k], inverse, relief))
        plain.append(inverse @ (seen[k] - images.places_px[k]))
        # 1 / u of the point, too
        u = camera.virtual_depth_from_depth(moved[k, 2], camera.image_centers_und_px[lenses[k]])
        change = images.rho_slopes[k, :2] + images.rho_slopes[k, 2] * slope
        assert 1.0 / u - images.rhos[k] == pytest.approx(change @ st[k], abs=0.05 * 5.0 * 2e-3)
    # what is left is of third order
    assert np.abs(np.array(found) - st).max() < 2e-4
    assert np.abs(np.array(plain) - st).max() > 0.01


def make_receding_case(rng):
    """Return a case of steep surfaces with defocus, as rays through all of the aperture show them.

    A lens of relative defocus b sees a place of the surface displaced by `b r` for each point r of
    the used aperture: a disc whose middle is a tenth of the distance to the micro-image center away.
    The defocus changes along the surface, and so does the scale. Half of the lenses are focused
    nearer than the surface, and half of them farther.
    """
    case = cases.make_case(rng, n_tracks=6, n_images=40, start_px=0.02, slope=0.01)
    n = len(case.true_px)
    rhos, focal, blur_px = 0.3, np.array([0.4, 0.2]), 9.0
    flat = np.zeros((2, 200), np.float32)
    away = np.tile(np.arange(200, dtype=np.float32) / kernels.BINS_PER_PX, (2, 1))
    optics = replace(
        case.optics,
        lens_types=np.arange(len(case.grid)) % 2,
        focal_rhos=focal,
        blur_px=blur_px,
        weights=flat + np.float32(1.0),
        shifts_px=0.1 * away,
        drifts_px=flat,
    )
    images = replace(
        case.images,
        rhos=np.full(n, rhos),
        perspectives=np.column_stack([np.zeros((n, 2)), rng.uniform(0.0, 0.3, n)]),
        rho_slopes=np.column_stack([np.zeros((n, 2)), rng.uniform(-0.15, -0.05, n)]),
    )
    case = replace(case, images=images, optics=optics)
    return case.with_values(trace(case))


def trace(case):
    """Return the pixels of all patches: the mean over rays, each from its own place."""
    images, side = case.images, case.patches.values.shape[1]
    steps = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1)
    within = np.array([[i, j] for i in (-1.0, 1.0) for j in (-1.0, 1.0)]) / np.sqrt(12.0)
    nodes = np.arange(-2, 3) / 2.0
    disc = np.array([(x, y) for x in nodes for y in nodes if x * x + y * y <= 1.0])
    disc *= 0.5 / np.sqrt((disc**2).mean())  # the nodes have the variance of the unit disc
    inverses = np.linalg.inv(case.affine())
    out = np.empty(case.patches.values.shape)
    for k, track in enumerate(images.tracks):
        slope = case.true_slopes[track]
        focal = case.optics.focal_rhos[case.optics.lens_types[images.lenses[k]]]
        center = case.grid.centers_raw_px[images.lenses[k]]
        recorded = case.patches.corners_px[k] + steps
        rays = 0.1 * (recorded - center)[:, :, None, :] + case.optics.blur_px * focal * disc
        growth = images.perspectives[k, :2] + images.perspectives[k, 2] * slope
        nearer = images.rho_slopes[k, :2] + images.rho_slopes[k, 2] * slope
        total = np.zeros((side, side))
        for part in within:
            st = np.zeros(rays.shape)
            for _ in range(5):
                bend = (focal - images.rhos[k] - st @ nearer) / focal
                pinhole = (recorded + part - case.true_px[k])[:, :, None, :] - bend[..., None] * rays
                st = pinhole @ inverses[k].T * (1.0 - st @ growth)[..., None]
            total += case.textures[track](st).mean(axis=2)
        out[k] = case.gains[k] * total / len(within) + case.offsets[k]
    return out


def test_receding_surfaces_out_of_focus(rng):
    """What is left of the errors has nothing to do with what the relief moves."""
    case = make_receding_case(rng)

    def find_errors(images):
        found = measure(
            images,
            case.patches,
            case.grid,
            case.optics,
            1e-9,
            cases.OPTIONS,
            slopes=case.true_slopes,
            slope_means=case.true_slopes,
        )
        assert (found.status == MeasureStatus.MEASURED).all()
        return case.errors(found.places_px)

    none = np.zeros((len(case.images), 3))
    errors = find_errors(case.images)
    for missing in ("perspectives", "rho_slopes"):
        without = find_errors(replace(case.images, **{missing: none}))
        moved = errors - without
        share = np.sum(errors * moved) / np.sum(moved**2)
        assert np.abs(moved).mean() > 1e-3
        assert abs(share) < 0.15, (missing, share)
