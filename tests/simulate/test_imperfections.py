"""Imperfect optics and recordings against twins that share no code with the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import ArrayTilt, NoDistortion
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.imaging.files import read_image
from lifcal.simulate import (
    CAMERAS,
    Ball,
    Imperfections,
    PackedScene,
    Quad,
    Renderer,
    Scene,
    SensorOptions,
    Simulation,
    SimulationOptions,
    Texture,
    build_camera,
    fit_model,
    trace_chief_rays,
    write_sequence,
)
from lifcal.simulate._kernels import pick_set, place_in_overlap
from lifcal.simulate.imperfections import REAL
from lifcal.simulate.render import make_samples
from lifcal.simulate.sensor import Speck, compress, expose, shade_by_dust
from tests.reference import imperfect_twin as twin
from tests.reference.ray_twin import brown_polar
from tests.reference.raycast import cast_rays
from tests.simulate.test_render import make_pose, make_scene

OPTIONS = {
    "perfect": Imperfections(),
    "tilt": Imperfections(tilt_x_deg=0.3, tilt_y_deg=-0.2),
    "rotation and jitter": Imperfections(rotation_deg=1.5, jitter_px=0.3),
    "object distortion": Imperfections(object_distortion_a=0.2, object_distortion_b=0.1),
    "object distortion at a distance": Imperfections(
        object_distortion_a=0.3, object_distortion_distance_mm=150.0
    ),
    "stop": Imperfections(stop_mm=2.5),
    "stop in front": Imperfections(stop_mm=-4.0),
    "field curvature": Imperfections(field_curvature=0.05),
    "cos4 and blur": Imperfections(cos4=True, blur_px=0.4),
    "all": Imperfections(
        tilt_x_deg=-0.2,
        tilt_y_deg=0.1,
        rotation_deg=0.5,
        jitter_px=0.1,
        object_distortion_a=0.1,
        object_distortion_distance_mm=800.0,
        stop_mm=1.5,
        field_curvature=-0.03,
        cos4=True,
        blur_px=0.2,
    ),
}
each_option = pytest.mark.parametrize("name", OPTIONS)


def make_bench(optics):
    p, errors = optics.camera.parameters, optics.imperfections
    return twin.Bench(
        p.focal_length_mm,
        p.lens_to_array_mm,
        p.array_to_sensor_mm,
        tuple(optics.camera.principal_point_px),
        optics.camera.pixel_size_mm,
        (errors.tilt_x_deg, errors.tilt_y_deg),
        errors.stop_mm,
        errors.field_curvature,
        errors.object_distortion_a,
        errors.object_distortion_b,
        errors.object_distortion_distance_mm,
    )


def twin_lens(optics, index):
    """The lens on the bench, from where its center is across the axis alone."""
    bench = make_bench(optics)
    across = optics.micro_lenses.centers_mm[index] / bench.s
    return twin.place_lens(bench.c + across, bench)


def twin_distort(optics):
    k0, k1, k2, p0, p1 = optics.camera.distortion.parameters
    return brown_polar((k0, k1, k2), (p0, p1), optics.camera.principal_point_px)


def draw_pairs(optics, rng, n=40):
    """Points in space with micro lenses that see them, near enough."""
    camera = optics.camera
    depth = 1.0 / rng.uniform(1 / 3000.0, 1 / 350.0, n)
    places = rng.uniform(0.05, 0.95, (n, 2)) * camera.image_size
    xy = (places - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
    near = places + rng.uniform(-1.0, 1.0, (n, 2)) * camera.grid.pitch_px
    return np.column_stack([xy, depth]), camera.grid.nearest(near)


# Micro-image centers


@each_option
def test_recorded_centers_are_on_the_ray_through_the_stop_and_the_lens(name, rng):
    optics = build_camera("mini", OPTIONS[name])
    bench, distort = make_bench(optics), twin_distort(optics)
    for index in rng.integers(0, len(optics.camera.grid), 30):
        center = twin.image_center(twin_lens(optics, index), bench)
        np.testing.assert_allclose(
            optics.camera.grid.centers_raw_px[index], distort(center), atol=1e-9
        )


def lattice_of(points, basis):
    """Basis of the least-squares lattice through points, near a known one, and what is left."""
    origin = points[len(points) // 2]
    indices = np.rint((points - origin) @ np.linalg.inv(basis))
    design = np.column_stack([np.ones(len(points)), indices])
    found, *_ = np.linalg.lstsq(design, points, rcond=None)
    return found[1:], points - design @ found


@pytest.mark.parametrize("camera", ["mini", "mini-keplerian", "mini-square"])
def test_micro_lenses_are_a_regular_lattice_and_recorded_centers_are_bent(camera):
    optics = build_camera(camera)
    design = CAMERAS[camera]
    regular = build_camera(camera, Imperfections(lattice="recorded")).camera.grid
    p = design.parameters
    shrink = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    expected = regular.lattice.basis_px * optics.camera.pixel_size_mm * shrink
    basis, rest = lattice_of(optics.micro_lenses.centers_mm, expected)
    assert np.abs(rest).max() < 1e-12
    np.testing.assert_allclose(basis, expected, atol=1e-12)
    _, bent = lattice_of(optics.camera.grid.centers_raw_px, regular.lattice.basis_px)
    if isinstance(design.distortion, NoDistortion):
        np.testing.assert_array_equal(optics.camera.grid.centers_raw_px, regular.centers_raw_px)
    else:
        assert bent.std() > 0.1


def test_the_recorded_lattice_is_regular_as_recorded():
    optics = build_camera("mini", Imperfections(lattice="recorded"))
    assert optics.lenses is None
    grid = optics.camera.grid
    np.testing.assert_array_equal(
        grid.centers_raw_px, grid.lattice.centers(grid.lattice.inside(grid.image_size, 6.3))
    )
    # Then it is the lenses that are not regular.
    _, rest = lattice_of(optics.micro_lenses.centers_mm, plain_basis(optics))
    assert rest.std() > 0.1 * optics.camera.pixel_size_mm


@pytest.mark.parametrize("distorted", [True, False])
def test_all_micro_images_that_touch_the_image_are_there(distorted):
    """Barrel distortion brings lenses from outside into the image."""
    design = CAMERAS["mini"]
    if not distorted:
        design = replace(design, distortion=NoDistortion())
    grid = design.build(Imperfections(tilt_x_deg=0.1, stop_mm=3.0)).camera.grid
    width, height = grid.image_size
    x, y = np.meshgrid(np.linspace(0, width - 1, 60), np.linspace(0, height - 1, 60))
    places = np.column_stack([x.ravel(), y.ravel()])
    away = np.linalg.norm(places - grid.centers_raw_px[grid.nearest(places)], axis=1)
    # No place of a hexagonal lattice is further from a center than pitch / sqrt(3).
    assert away.max() < 0.6 * grid.pitch_px


def test_jitter_and_rotation_have_their_size():
    plain = build_camera("mini", Imperfections())
    turned = build_camera("mini", Imperfections(rotation_deg=0.5, jitter_px=0.2), seed=3)
    pixel = plain.camera.pixel_size_mm
    basis, _ = lattice_of(plain.micro_lenses.centers_mm, plain_basis(plain))
    other, rest = lattice_of(turned.micro_lenses.centers_mm, plain_basis(plain))
    angles = [np.degrees(np.arctan2(b[0, 1], b[0, 0])) for b in (basis, other)]
    assert angles[1] - angles[0] == pytest.approx(0.5, abs=0.01)
    assert (rest / pixel).std() == pytest.approx(0.2, rel=0.05)
    again = build_camera("mini", Imperfections(rotation_deg=0.5, jitter_px=0.2), seed=4)
    assert (again.micro_lenses.centers_mm[:100] != turned.micro_lenses.centers_mm[:100]).any()


def plain_basis(optics):
    """Basis of the micro lenses of `mini`, mm."""
    lattice = build_camera("mini", Imperfections(lattice="recorded")).camera.grid.lattice
    return lattice.basis_px * optics.camera.pixel_size_mm * 15.893 / (15.893 + 0.376)


# Chief rays and the model


@each_option
@pytest.mark.parametrize("camera", ["mini", "mini-keplerian"])
def test_chief_rays_against_the_twin(name, camera, rng):
    optics = build_camera(camera, OPTIONS[name])
    bench, distort = make_bench(optics), twin_distort(optics)
    points, lenses = draw_pairs(optics, rng)
    found = trace_chief_rays(optics, points, lenses)
    expected = [
        distort(twin.chief_ray(point, twin_lens(optics, lens), bench))
        for point, lens in zip(points, lenses, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["perfect", "tilt", "rotation and jitter", "cos4 and blur"])
@pytest.mark.parametrize("camera", ["mini", "mini-keplerian", "r12-50mm"])
def test_the_camera_model_has_these_exactly(name, camera, rng):
    """The projection with the true centers and the tilt, against traced chief rays."""
    optics = build_camera(camera, OPTIONS[name])
    assert optics.imperfections.is_inside_the_model
    points, lenses = draw_pairs(optics, rng, 200)
    found = optics.camera.project(points, lenses)
    np.testing.assert_allclose(found, trace_chief_rays(optics, points, lenses), atol=1e-7)


@pytest.mark.parametrize("name", ["object distortion", "stop", "field curvature", "all"])
def test_the_camera_model_does_not_have_these(name, rng):
    optics = build_camera("mini", OPTIONS[name])
    assert not optics.imperfections.is_inside_the_model
    points, lenses = draw_pairs(optics, rng, 200)
    error = optics.camera.project(points, lenses) - trace_chief_rays(optics, points, lenses)
    assert np.abs(error).max() > 0.05


def test_points_that_no_ray_reaches_are_nan():
    optics = build_camera("mini-real")
    found = trace_chief_rays(optics, [[0, 0, -500], [np.nan, 0, 800], [10, 20, 800]], [0, 0, 900])
    assert np.isnan(found[:2]).all()
    assert np.isfinite(found[2]).all()
    with pytest.raises(InputError, match="2 points for 1 lenses"):
        trace_chief_rays(optics, [[0, 0, 500], [0, 0, 600]], [0])


# Best fit


def draw_views(optics, working_range, rng, n_views=8, n_points=60):
    camera = optics.camera
    near, far = working_range
    views = []
    for _ in range(n_views):
        middle = 1.0 / rng.uniform(1.0 / far, 1.0 / near)
        low, high = np.clip([0.7 * middle, 1.5 * middle], near, far)
        depth = 1.0 / rng.uniform(1.0 / high, 1.0 / low, n_points)
        places = rng.uniform(0.0, 1.0, (n_points, 2)) * camera.image_size
        xy = (places - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
        views.append(np.column_stack([xy, depth]))
    return views


@pytest.mark.parametrize("name", ["mini", "mini-keplerian", "r5-12.5mm"])
def test_the_best_fit_to_a_tilted_bent_camera_is_the_camera(name, rng):
    design = CAMERAS[name]
    optics = design.build(Imperfections(tilt_x_deg=0.03, tilt_y_deg=-0.02, jitter_px=0.05))
    views = draw_views(optics, design.working_range_mm, rng)
    fit = fit_model(optics, views)
    assert fit.rms_px < 1e-6
    np.testing.assert_allclose(
        fit.camera.parameters.as_vector(), optics.camera.parameters.as_vector(), rtol=1e-6
    )
    np.testing.assert_allclose(
        fit.camera.tilt.as_vector(), optics.camera.tilt.as_vector(), rtol=1e-5
    )
    # Without a tilt the model cannot follow.
    assert fit_model(optics, views, with_tilt=False).rms_px > 0.005


@pytest.mark.parametrize("name", ["mini-real", "mini-square-real", "r5-16mm-real"])
def test_the_best_fit_to_mild_imperfections_is_close(name, rng):
    design = CAMERAS[name]
    optics = design.build()
    views = draw_views(optics, design.working_range_mm, rng)
    fit = fit_model(optics, views)
    assert 1e-4 < fit.rms_px < 0.005
    assert fit.rms_px < fit.worst_px < 0.06
    true, found = optics.camera.parameters, fit.camera.parameters
    assert found.focal_length_mm == pytest.approx(true.focal_length_mm, rel=5e-4)
    assert found.array_to_sensor_mm == pytest.approx(true.array_to_sensor_mm, rel=1e-2)
    # The object-space distortion appears in the Brown terms: k0 F^2 is a, on top of the camera's.
    added = fit.camera.distortion.parameters[0] - getattr(optics.camera.distortion, "k0", 0.0)
    assert added * optics.camera.array.focal_px**2 == pytest.approx(0.02, rel=0.05)


def test_a_stop_away_from_the_lens_looks_like_another_camera(rng):
    """Exactly so: the model with other f_L, b_L0, B and the camera moved along its axis."""
    optics = build_camera("mini", Imperfections(stop_mm=2.5))
    fit = fit_model(optics, draw_views(optics, (300.0, 4000.0), rng))
    assert fit.rms_px < 1e-6
    assert abs(fit.camera.parameters.focal_length_mm / 16.748 - 1.0) > 0.003


def test_the_best_fit_needs_points():
    optics = build_camera("mini")
    with pytest.raises(EstimationError, match="only 0 micro-image points"):
        fit_model(optics, [np.array([[0.0, 0.0, -500.0]])])
    with pytest.raises(InputError, match="no views"):
        fit_model(optics, [])


# Rendering


def render_slowly(renderer, scene, cam_from_world, seed, window):
    """The raw image ray by ray on the bench."""
    optics, camera = renderer.optics, renderer.optics.camera
    bench = make_bench(optics)
    world_from_cam = cam_from_world.inverse()
    x0, y0, n_x, n_y = window
    image = np.zeros((n_y, n_x))
    for row, col in np.ndindex(n_y, n_x):
        chosen = renderer.samples[
            pick_set(np.uint64(seed), y0 + row, x0 + col, len(renderer.samples))
        ]
        places = np.array([x0 + col, y0 + row]) - 0.5 + chosen[:, :2].astype(float)
        ideal = camera.distortion.undistort(places, camera.principal_point_px)
        near = np.linalg.norm(camera.grid.centers_raw_px - [x0 + col, y0 + row], axis=1)
        for index in np.flatnonzero(near < 2.0 * camera.grid.pitch_px):
            lens = twin_lens(optics, index)
            f_m = optics.micro_focal_lengths_mm[camera.grid.lens_types[index]]
            for place, sample in zip(ideal, chosen, strict=True):
                pixel = twin.place_pixel(place, bench)
                # Which part of the micro lens sees the stop: traced, and it is linear.
                middle = twin.trace_out(pixel, lens, (0.0, 0.0), f_m, bench)[0][:2]
                right = twin.trace_out(pixel, lens, (1.0, 0.0), f_m, bench)[0][:2]
                spread = right[0] - middle[0]
                # The samples count along the raw image's axes, on the bench all is turned.
                *offset, weight = place_in_overlap(
                    *sample[2:].astype(float),
                    optics.micro_radius_mm,
                    optics.main_radius_mm / abs(spread),
                    *(middle / spread),
                )
                if weight == 0.0:
                    continue
                offset = -np.array(offset)
                stop, main, direction = twin.trace_out(pixel, lens, offset, f_m, bench)
                assert np.hypot(*stop[:2]) < optics.main_radius_mm * (1.0 + 1e-6)
                if optics.imperfections.cos4:
                    arriving = lens + np.array([*offset, 0.0]) - pixel
                    weight *= (arriving[2] / np.linalg.norm(arriving)) ** 4
                hits = cast_rays(
                    scene,
                    world_from_cam.apply(main[None])[0],
                    (world_from_cam.rotation @ direction)[None],
                )
                brightness = hits.radiance[0] @ [0.299, 0.587, 0.114]
                image[row, col] += weight * brightness / len(chosen)
    return image


@each_option
def test_raw_against_the_slow_twin(name, rng):
    optics = build_camera("mini", OPTIONS[name])
    renderer = Renderer(optics, 4)
    scene, pose = make_scene(rng, 20, 8), make_pose(rng)
    # Toward a corner, where the imperfections are large.
    window = (int(rng.integers(20, 80)), int(rng.integers(380, 440)), 7, 5)
    fast = renderer.render_raw(PackedScene(scene), pose, 5, window)
    slow = render_slowly(renderer, scene, pose, 5, window)
    # Albedo and luminance are stored in 8 bits: half a step each.
    np.testing.assert_allclose(fast, slow, atol=1.1 / 255)
    assert slow.std() > 0.01


@pytest.mark.parametrize(
    "name", ["tilt", "object distortion at a distance", "stop", "field curvature", "all"]
)
def test_balls_land_on_their_chief_rays(name, rng):
    optics = build_camera("mini", OPTIONS[name]).stopped_down(0.05)
    camera = optics.camera
    points, _ = draw_pairs(optics, rng, 6)
    renderer = Renderer(optics, 256)
    errors, off = [], []
    for point in points:
        footprint = abs(camera.array.alpha * point[2] + camera.array.beta_mm)
        ball = Ball(
            point,
            0.61 * footprint / camera.array.focal_px,
            Texture(np.full((4, 4, 3), 255, np.uint8)),
        )
        scene = Scene("ball", (), (ball,), (), np.zeros(3), np.zeros(3), 1.0, 1.0)
        virtual = camera.virtual_from_cam(point[None])[0]
        near = np.linalg.norm(camera.grid.centers_raw_px - virtual[:2], axis=1)
        lenses = np.argsort(near)[:4]
        expected = trace_chief_rays(optics, np.tile(point, (4, 1)), lenses)
        model = replace(camera, tilt=None).project(np.tile(point, (4, 1)), lenses)
        for lens, place, by_model in zip(lenses, expected, model, strict=True):
            # The rim of a micro image would cut the ball.
            if np.hypot(*(place - camera.grid.centers_raw_px[lens])) > 0.3 * camera.grid.pitch_px:
                continue
            x, y = np.rint(place).astype(int) - 3
            if not (0 <= x < camera.image_size[0] - 7 and 0 <= y < camera.image_size[1] - 7):
                continue
            light = renderer.render_raw(
                PackedScene(scene), RigidTransform.identity(), 0, (x, y, 7, 7)
            )
            if light.sum() < 1e-3:
                continue
            rows, cols = np.mgrid[:7, :7]
            found = np.array([(light * (cols + x)).sum(), (light * (rows + y)).sum()])
            errors.append(found / light.sum() - place)
            off.append(by_model - place)
    assert len(errors) > 8
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert np.abs(off).max() > 0.1


def measure_spot(optics, lens):
    """Centroid of a micro image in the white image minus its true center, variance along x."""
    x, y = optics.camera.grid.centers_raw_px[lens]
    x0, y0, size = int(x) - 12, int(y) - 12, 25
    white = PackedScene(Scene("white", (), (), (), np.ones(3), np.zeros(3), 1.0, 1.0))
    renderer = Renderer(optics, 256)
    light = renderer.render_raw(white, RigidTransform.identity(), 0, (x0, y0, size, size))
    rows, cols = np.mgrid[:size, :size] + np.array([y0 - y, x0 - x])[:, None, None]
    light = np.where(np.hypot(cols, rows) < 0.52 * optics.camera.grid.pitch_px, light, 0.0)
    middle = np.array([(light * cols).sum(), (light * rows).sum()]) / light.sum()
    return middle, float((light * cols**2).sum() / light.sum())


def test_shading_pulls_the_centroids_of_the_white_image_inward():
    plain = build_camera("r5-12.5mm", Imperfections())
    shaded = build_camera("r5-12.5mm", Imperfections(cos4=True))
    c = plain.camera.principal_point_px
    lens = int(plain.camera.grid.nearest([[60.0, 70.0]])[0])
    inward = c - plain.camera.grid.centers_raw_px[lens]
    slope = np.hypot(*inward) / plain.camera.array.focal_px
    inward /= np.hypot(*inward)
    without, variance = measure_spot(plain, lens)
    assert np.hypot(*without) < 0.03
    pulled = float((measure_spot(shaded, lens)[0] - without) @ inward)
    # To first order the shading is a gradient of -4 h / (1 + h^2) / B along the field, and pulls
    # the centroid by that times the variance of the spot along one axis.
    # It is less, since pixels further out see through parts of the micro lens further out.
    gradient = 4.0 * slope / (1.0 + slope**2) / (0.399 / 0.0055)
    assert 0.5 < pulled / (gradient * variance) < 0.7
    assert pulled > 0.2


def test_blurred_places_are_a_box_and_a_gaussian(rng):
    for sigma in (0.13, 1.0):
        places = make_samples(64, 1, blur_px=sigma)[..., 0].astype(float).ravel()
        expected = rng.uniform(size=10**6) + sigma * rng.standard_normal(10**6)
        assert places.mean() == pytest.approx(0.5, abs=1e-3)
        assert places.std() == pytest.approx(np.sqrt(1 / 12 + sigma**2), rel=2e-3)
        for quantile in (0.05, 0.3, 0.9):
            assert np.quantile(places, quantile) == pytest.approx(
                np.quantile(expected, quantile), abs=0.01
            )


# The recording


@pytest.fixture
def simulate(monkeypatch):
    """Simulations of a small scene, quick to build, with few rays and no noise."""
    rng = np.random.default_rng(0)
    albedo = np.repeat(rng.integers(40, 255, (64, 64, 1), dtype=np.uint8), 3, axis=2)
    wall = Quad([-500, -500, 0], [1000, 0, 200], [0, 1000, -150], Texture(albedo))
    scene = Scene("wall", (wall,), (), (), np.full(3, 0.1), np.zeros(3), 700.0, 400.0)
    monkeypatch.setattr("lifcal.simulate.sequence.build_scene", lambda name, seed: scene)
    monkeypatch.setattr("lifcal.simulate.sequence._WHITE_RAYS", 2)

    def build(imperfections, frames=4, rays=1):
        quiet = SensorOptions(full_well_e=0.0, read_noise_e=0.0)
        return Simulation(
            SimulationOptions(
                camera="mini",
                frames=frames,
                seed=2,
                rays_per_pixel=rays,
                sensor=quiet,
                imperfections=imperfections,
            )
        )

    return build


def test_exposure_drifts_slowly_and_is_recorded(simulate):
    plain, drifting = simulate(Imperfections()), simulate(Imperfections(exposure_drift=0.2))
    np.testing.assert_allclose(drifting.exposures, [1.0, 1.2, 1.0, 0.8])
    a, b = (s.render_frame(3).raw.astype(float) for s in (plain, drifting))
    bright = a > 60
    assert np.median(b[bright] / a[bright]) == pytest.approx(0.8, abs=0.01)
    np.testing.assert_array_equal(plain.render_white(), drifting.render_white())


@pytest.mark.parametrize("name", ["perfect", "cos4 and blur", "stop in front"])
def test_only_pixels_without_light_are_skipped(simulate, name):
    """Pixels that no ray can reach are not traced; samples that are far apart make it trace all."""
    renderer = simulate(OPTIONS[name], frames=2, rays=4)._renderer
    found = renderer.render_white(window=(0, 0, 90, 60))
    renderer._extent_px = 1e6
    np.testing.assert_array_equal(renderer.render_white(window=(0, 0, 90, 60)), found)


def test_motion_blur_is_the_mean_over_the_shutter(simulate):
    simulation = simulate(Imperfections(motion_blur=0.5), frames=8, rays=16)
    for index in (0, 3, 7):
        pose, found = simulation.trajectory.world_from_cam[index], simulation.pose_at(index)
        np.testing.assert_allclose(found.rotation, pose.rotation, atol=1e-12)
        np.testing.assert_allclose(found.translation_mm, pose.translation_mm, atol=1e-9)
    renderer = Renderer(simulation.optics, 64)
    window = (200, 200, 60, 60)
    packed = PackedScene(simulation.scene)
    sharp = [
        renderer.render_raw(packed, simulation.pose_at(3 + time).inverse(), 1, window)
        for time in np.linspace(-0.25, 0.25, 33)
    ]
    blurred = simulation._render_light(3)[200:260, 200:260]
    error = (blurred - np.mean(sharp, axis=0)).std()
    # What is left is the noise of two rays for each of eight poses.
    assert error < 0.5 * (blurred - sharp[16]).std()


def test_dust_shades_frames_and_white_image(simulate):
    plain, dusty = simulate(Imperfections()), simulate(Imperfections(dust=20, white_dust=5))
    assert len(dusty.dust) == 20
    assert len(dusty.white_dust) == 5
    speck = max(dusty.dust, key=lambda speck: speck.absorbed * speck.radius_px)
    x, y = round(speck.x_px), round(speck.y_px)
    near = np.s_[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
    for a, b in (
        (plain.render_frame(1).raw, dusty.render_frame(1).raw),
        (plain.render_white(), dusty.render_white()),
    ):
        assert b[near].sum() < (1.0 - 0.5 * speck.absorbed) * a[near].sum()
        assert (a == b).mean() > 0.9
    (extra,) = dusty.white_dust[:1]
    frame_light = shade_by_dust(np.ones((480, 640), np.float32), dusty.dust)
    white_light = shade_by_dust(frame_light, (extra,))
    at = round(extra.y_px), round(extra.x_px)
    assert white_light[at] < frame_light[at]
    light = shade_by_dust(np.ones((20, 20), np.float32), (Speck(4.0, 7.0, 2.0, 0.5),))
    assert light[7, 4] == pytest.approx(0.5)
    assert light[7, 6] == pytest.approx(1.0 - 0.5 * np.exp(-0.5))


def test_a_white_image_at_another_aperture_has_other_micro_images(simulate):
    plain, narrow = simulate(Imperfections()), simulate(Imperfections(white_aperture=0.6))
    assert (narrow.render_white() > 30).mean() < 0.7 * (plain.render_white() > 30).mean()
    np.testing.assert_array_equal(narrow.render_frame(0).raw, plain.render_frame(0).raw)


def test_gamma_codes_the_values(rng, simulate):
    light = rng.uniform(0.0, 1.0, (40, 40)).astype(np.float32)
    sensor = SensorOptions(exposure=1.0, full_well_e=0.0, read_noise_e=0.0)
    coded = expose(light, sensor, rng, gamma=2.2)
    np.testing.assert_allclose(coded, 255.0 * light.astype(float) ** (1 / 2.2), atol=0.51)
    plain, gamma = simulate(Imperfections()), simulate(Imperfections(gamma=2.2))
    assert gamma.render_frame(0).raw.mean() > 1.2 * plain.render_frame(0).raw.mean()


@pytest.mark.parametrize(("kind", "low", "high"), [("jpeg", 0.5, 5.0), ("video", 2.0, 9.0)])
def test_compression_loses_some(kind, low, high, tmp_path, simulate):
    simulation = simulate(Imperfections(compression=kind), frames=1, rays=8)
    raw = simulate(Imperfections(), frames=1, rays=8).render_frame(0).raw
    frame = simulation.render_frame(0)
    error = frame.raw.astype(float) - raw
    assert low < error.std() < high
    assert abs(error.mean()) < 0.5
    np.testing.assert_array_equal(compress(raw, kind), frame.raw)
    write_sequence(tmp_path / "recording", simulation)
    (path,) = (tmp_path / "recording" / "raw").iterdir()
    assert path.name == ("0000.jpg" if kind == "jpeg" else "0000.png")
    # A second pass through the same quantization changes next to nothing.
    assert np.abs(read_image(path).astype(float) - frame.raw).mean() < 0.3


# Names and limits


def test_the_real_cameras_have_all_mild_imperfections():
    perfect = [name for name in CAMERAS if not name.endswith("-real")]
    assert {f"{name}-real" for name in perfect} == set(CAMERAS) - set(perfect)
    for name in perfect:
        assert CAMERAS[name].imperfections == Imperfections()
        errors = CAMERAS[f"{name}-real"].imperfections
        assert replace(errors, object_distortion_distance_mm=None) == REAL
    assert np.hypot(REAL.tilt_x_deg, REAL.tilt_y_deg) == pytest.approx(0.03, abs=5e-4)
    optics = build_camera("mini-real")
    assert isinstance(optics.camera.tilt, ArrayTilt)
    assert build_camera("mini").camera.tilt is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tilt_x_deg": 3.0}, "tilt_x_deg is 3.0, needs -1 to 1"),
        ({"jitter_px": -0.1}, "jitter_px is -0.1, needs 0 to 2"),
        ({"stop_mm": float("nan")}, "stop_mm is nan, needs a finite number"),
        ({"white_aperture": 0.0}, "white_aperture is 0.0"),
        ({"lattice": "recorded", "tilt_y_deg": 0.1}, "leaves no freedom"),
    ],
)
def test_impossible_imperfections_are_named(given, message):
    with pytest.raises(InputError, match=message):
        Imperfections(**given)


def test_unknown_kinds_are_named():
    with pytest.raises(ConfigError, match="lattice"):
        Imperfections(lattice="hexagonal")
    with pytest.raises(ConfigError, match="compression"):
        Imperfections(compression="gif")
    with pytest.raises(InputError, match="compressed files hold 8 bits"):
        SimulationOptions(
            sensor=SensorOptions(bits=12), imperfections=Imperfections(compression="jpeg")
        )
