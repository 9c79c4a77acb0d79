"""The renderer against slow twins, against the analytic white image, and against itself."""

import numpy as np
import pytest

from lifcal.camera import BrownDistortion, PlenopticCamera
from lifcal.errors import ConfigError, InputError
from lifcal.geometry import RigidTransform
from lifcal.simulate import (
    Ball,
    Optics,
    PackedScene,
    Quad,
    Renderer,
    Scene,
    Texture,
    build_camera,
)
from lifcal.simulate._kernels import (
    halve_both,
    halve_columns,
    halve_rows,
    pick_set,
    place_in_overlap,
    round_planes,
)
from lifcal.simulate.render import make_samples
from lifcal.threads import THREADS
from tests.reference import ray_twin
from tests.reference.raycast import cast_rays


def plain(value):
    return Texture(np.full((8, 8, 3), value, np.uint8))


def make_scene(rng, n_quads=12, n_balls=5, near=350.0, far=900.0):
    """Plain surfaces of different brightness, all over the view, with a background."""
    quads = []
    for _ in range(n_quads):
        depth = rng.uniform(near, far)
        quads.append(
            Quad(
                [*rng.uniform(-0.35, 0.2, 2) * depth, depth],
                rng.uniform(0.05, 0.2, 3) * depth * [1, 0.2, 1],
                rng.uniform(0.05, 0.2, 3) * depth * [0.2, 1, -1],
                plain(rng.integers(30, 255)),
                rng.uniform(0.5, 1.0),
            )
        )
    balls = [
        Ball(
            rng.uniform([-0.3 * near, -0.25 * near, near], [0.3 * near, 0.25 * near, far]),
            rng.uniform(10, 40),
            plain(rng.integers(30, 255)),
        )
        for _ in range(n_balls)
    ]
    return Scene(
        "plain", tuple(quads), tuple(balls), (), np.array([0.2, 0.3, 0.4]), np.zeros(3), 1.0, 1.0
    )


def make_pose(rng):
    return RigidTransform.from_rotation_vector(
        rng.normal(scale=0.05, size=3), rng.normal(scale=20.0, size=3)
    )


def render_slowly(renderer, scene, cam_from_world, seed, window):
    """The raw image ray by ray: every lens, every sample, the traced bench, the cast ray."""
    optics, camera = renderer.optics, renderer.optics.camera
    p = camera.parameters
    bench = ray_twin.Bench(
        p.focal_length_mm,
        p.lens_to_array_mm,
        p.array_to_sensor_mm,
        tuple(camera.principal_point_px),
        camera.pixel_size_mm,
    )
    world_from_cam = cam_from_world.inverse()
    x0, y0, n_x, n_y = window
    image = np.zeros((n_y, n_x))
    for row in range(n_y):
        for col in range(n_x):
            chosen = renderer.samples[
                pick_set(np.uint64(seed), y0 + row, x0 + col, len(renderer.samples))
            ]
            places = np.array([x0 + col, y0 + row]) - 0.5 + chosen[:, :2].astype(float)
            ideal = camera.distortion.undistort(places, camera.principal_point_px)
            near = np.linalg.norm(camera.grid.centers_raw_px - [x0 + col, y0 + row], axis=1)
            for lens in np.flatnonzero(near < 2.0 * camera.grid.pitch_px):
                center = camera.image_centers_und_px[lens]
                f_m = optics.micro_focal_lengths_mm[camera.grid.lens_types[lens]]

                def trace(i, offset, center=center, f_m=f_m, ideal=ideal):
                    # On the bench the image is upside down.
                    return ray_twin.trace_pixel(ideal[i], center, -np.asarray(offset), f_m, bench)

                # Which disc of the micro aperture passes the main one: traced, and it is linear.
                middle = trace(0, [0.0, 0.0]).main_point_mm
                spread = trace(0, [1.0, 0.0]).main_point_mm[0] - middle[0]
                radius = optics.main_radius_mm / abs(spread)
                for i, sample in enumerate(chosen):
                    disc = -trace(i, [0.0, 0.0]).main_point_mm / spread
                    *offset, weight = place_in_overlap(
                        *sample[2:].astype(float), optics.micro_radius_mm, radius, *disc
                    )
                    if weight == 0.0:
                        continue
                    ray = trace(i, offset)
                    assert np.hypot(*ray.main_point_mm) < optics.main_radius_mm * (1.0 + 1e-6)
                    assert np.hypot(*offset) < optics.micro_radius_mm * (1.0 + 1e-6)
                    hits = cast_rays(
                        scene,
                        world_from_cam.apply(ray.origin_cam_mm[None])[0],
                        (world_from_cam.rotation @ ray.direction_cam)[None],
                    )
                    brightness = hits.radiance[0] @ [0.299, 0.587, 0.114]
                    image[row, col] += weight * brightness / len(chosen)
    return image


@pytest.mark.parametrize("name", ["mini", "mini-square", "mini-keplerian"])
def test_raw_against_the_slow_twin(name, rng):
    optics = build_camera(name)
    renderer = Renderer(optics, 8)
    scene, pose = make_scene(rng), make_pose(rng)
    window = (int(rng.integers(200, 400)), int(rng.integers(100, 300)), 9, 7)
    fast = renderer.render_raw(PackedScene(scene), pose, 5, window)
    slow = render_slowly(renderer, scene, pose, 5, window)
    # Albedo and luminance are stored in 8 bits: half a step each.
    np.testing.assert_allclose(fast, slow, atol=1.1 / 255)
    assert slow.std() > 0.05


def test_the_whole_frame_is_its_windows(rng):
    renderer = Renderer(build_camera("mini"), 4)
    scene, pose = PackedScene(make_scene(rng)), make_pose(rng)
    whole = renderer.render_raw(scene, pose, 3)
    part = renderer.render_raw(scene, pose, 3, (600, 440, 40, 40))
    np.testing.assert_array_equal(whole[440:480, 600:640], part)


def test_pinhole_view_against_the_slow_twin(rng):
    optics = build_camera("mini")
    scene, pose = make_scene(rng, 25, 8), make_pose(rng)
    view = Renderer(optics, 1).render_pinhole(PackedScene(scene), pose, 0.25)
    height, width = view.depth_mm.shape
    assert (width, height) == (160, 120)
    rows, cols = np.mgrid[:height, :width]
    slopes = (np.stack([cols, rows], 2).reshape(-1, 2) - view.principal_point_px) / view.focal_px
    directions = np.column_stack([slopes, np.ones(len(slopes))])
    world_from_cam = pose.inverse()
    hits = cast_rays(scene, world_from_cam.translation_mm, directions @ world_from_cam.rotation.T)
    expected = np.where(np.isfinite(hits.depth), hits.depth, np.nan)
    np.testing.assert_allclose(view.depth_mm.reshape(-1), expected, rtol=1e-6)
    assert 0.2 < np.isfinite(expected).mean() < 0.999


def test_pinhole_view_is_the_virtual_image(rng):
    """Its pixels are (x_u, y_u): a projected point falls on the pixel that shows its depth."""
    optics = build_camera("mini")
    wall = Scene(
        "wall",
        (Quad([-900, -900, 700], [1800, 0, 300], [0, 1800, -200], plain(200)),),
        (),
        (),
        np.zeros(3),
        np.zeros(3),
        1.0,
        1.0,
    )
    view = Renderer(optics, 1).render_pinhole(PackedScene(wall), RigidTransform.identity(), 1.0)
    pixel = np.array([123.0, 311.0])
    depth = float(view.depth_mm[311, 123])
    u = float(optics.camera.virtual_depth_from_depth(depth))
    point = optics.camera.cam_from_virtual([[*pixel, u]])[0]
    quad = wall.quads[0]
    normal = np.cross(quad.edge_u_world_mm, quad.edge_v_world_mm)
    assert abs((point - quad.origin_world_mm) @ normal) / np.linalg.norm(normal) < 1e-3


def overlap_of_pixel(optics, lens, x, y):
    """The light that one lens brings to a pixel, averaged over it as the sensor does."""
    camera = optics.camera
    fine = (np.arange(8) + 0.5) / 8 - 0.5
    places = np.stack(np.meshgrid(x + fine, y + fine), axis=2).reshape(-1, 2)
    ideal = camera.distortion.undistort(places, camera.principal_point_px)
    offset = np.linalg.norm(ideal - camera.image_centers_und_px[lens], axis=1)
    plane = optics.focal_planes_v[camera.grid.lens_types[lens]]
    return optics.apertures.compute_illumination(offset * camera.pixel_size_mm, plane).mean()


def test_white_image_is_the_overlap_of_the_apertures():
    optics = build_camera("mini")
    camera = optics.camera
    renderer = Renderer(optics, 1024)
    rng = np.random.default_rng(0)
    checked = 0
    for lens in rng.integers(0, len(camera.grid), 20):
        pixels = np.array(camera.grid.pixels(int(lens)))
        corner, size = pixels.min(axis=0), np.ptp(pixels, axis=0) + 1
        light = renderer.render_white(1, (*corner.tolist(), *size.tolist()))
        for x, y in pixels:
            nearest = np.sort(np.linalg.norm(camera.grid.centers_raw_px - [x, y], axis=1))
            if nearest[1] < 0.75 * camera.grid.pitch_px:  # two lenses light this pixel
                continue
            expected = overlap_of_pixel(optics, lens, x, y)
            seen = light[y - corner[1], x - corner[0]]
            assert seen == pytest.approx(expected, abs=0.02)  # 1024 rays
            checked += 1
    assert checked > 500


@pytest.mark.parametrize(
    ("radius", "other", "away"),
    [(1.0, 2.0, 0.5), (1.0, 2.0, 1.7), (1.0, 2.0, 2.6), (1.5, 0.6, 0.2), (1.5, 0.6, 1.4)],
)
def test_points_in_an_overlap_are_spread_evenly(radius, other, away, rng):
    """Area and centroid by the weights, against points at random in a square around it."""
    angle = 0.7
    center = away * np.array([np.cos(angle), np.sin(angle)])
    samples = make_samples(64, 1).reshape(-1, 4)[:, 2:].astype(float)
    found = np.array([place_in_overlap(x, y, radius, other, *center) for x, y in samples])
    points, weights = found[:, :2], found[:, 2]
    assert (np.linalg.norm(points, axis=1) < radius * (1 + 1e-9)).all()
    assert (np.linalg.norm(points - center, axis=1) < other * (1 + 1e-9)).all()
    square = rng.uniform(-radius, radius, (1_000_000, 2))
    inside = (np.linalg.norm(square, axis=1) < radius) & (
        np.linalg.norm(square - center, axis=1) < other
    )
    area = 4.0 * inside.mean() / np.pi
    assert weights.mean() == pytest.approx(area, rel=0.01)
    np.testing.assert_allclose(
        weights @ points / weights.sum(), square[inside].mean(axis=0), atol=0.005 * radius
    )
    spread = np.cov(points.T, aweights=weights)
    np.testing.assert_allclose(spread, np.cov(square[inside].T), atol=0.005 * radius**2)


def test_points_in_an_overlap_at_its_limits():
    assert place_in_overlap(0.3, 0.4, 1.0, 2.0, 3.0, 0.1) == (0.0, 0.0, 0.0)
    assert place_in_overlap(0.3, 0.4, 1.0, 2.0, 0.5, 0.1) == (0.3, 0.4, 1.0)
    x, y, weight = place_in_overlap(0.3, 0.4, 2.0, 1.0, 0.0, 0.0)
    assert (x, y, weight) == (pytest.approx(0.3), pytest.approx(0.4), pytest.approx(0.25))


def test_few_rays_leave_less_noise_than_a_sensor():
    """No ray is lost at the apertures, so a few show the white image nearly as it is."""
    optics = build_camera("r5-16mm")
    white = PackedScene(Scene("white", (), (), (), np.ones(3), np.zeros(3), 1.0, 1.0))
    window = (900, 900, 150, 150)
    few, many = (
        Renderer(optics, n).render_raw(white, RigidTransform.identity(), 3, window)
        for n in (16, 1024)
    )
    used = many > 0.35
    # Shot noise of 10,000 electrons is 0.01.
    assert (few - many)[used].std() < 0.007
    assert abs((few - many)[used].mean()) < 2e-4


def test_a_small_main_aperture_gives_the_overlap_too(rng):
    """Stopped down so far that the main aperture's disc is the smaller one."""
    base = build_camera("mini")
    narrow = Optics(
        base.camera, 0.3 * base.main_radius_mm, base.micro_radius_mm, base.focal_planes_v
    )
    main, micro = narrow.apertures.disc_radii_mm(narrow.focal_planes_v)
    assert (main < micro).any()
    white = PackedScene(Scene("white", (), (), (), np.ones(3), np.zeros(3), 1.0, 1.0))
    renderer = Renderer(narrow, 2048)
    light = renderer.render_raw(white, RigidTransform.identity(), 0, (300, 200, 60, 60))
    grid = narrow.camera.grid
    for lens in grid.nearest(rng.uniform([310, 210], [350, 250], (10, 2))):
        x, y = np.rint(grid.centers_raw_px[lens]).astype(int) + rng.integers(-2, 3, 2)
        expected = overlap_of_pixel(narrow, lens, x, y)
        assert light[y - 200, x - 300] == pytest.approx(expected, abs=0.02)


def test_the_same_seed_gives_the_same_light_on_any_number_of_threads(rng, monkeypatch):
    renderer = Renderer(build_camera("mini"), 4)
    scene, pose = PackedScene(make_scene(rng)), make_pose(rng)
    first = renderer.render_raw(scene, pose, 7)
    other = renderer.render_raw(scene, pose, 8)
    monkeypatch.setattr(THREADS, "count", 1)
    again = renderer.render_raw(scene, pose, 7)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("bayer", ["rggb", "grbg", "gbrg", "bggr"])
def test_bayer_pixels_see_their_color(bayer):
    renderer = Renderer(build_camera("mini"), 4, bayer=bayer)
    colors = Scene("color", (), (), (), np.array([1.0, 0.5, 0.25]), np.zeros(3), 1.0, 1.0)
    light = renderer.render_raw(PackedScene(colors), RigidTransform.identity(), 0)
    white = renderer.render_white(0)
    bright = white > 0.5
    ratio = np.where(bright, light / np.maximum(white, 0.1), np.nan)
    value_of = {"r": 1.0, "g": 0.5, "b": 0.25}
    for place, letter in enumerate(bayer):
        found = np.nanmedian(ratio[place // 2 :: 2, place % 2 :: 2])
        assert found == pytest.approx(value_of[letter], abs=1e-3)


def test_an_unknown_bayer_pattern_is_named():
    with pytest.raises(ConfigError, match="Bayer pattern"):
        Renderer(build_camera("mini"), 1, bayer="rgb")


def test_textures_are_seen_where_they_are(rng):
    """A bright texel on a dark wall appears at its own place, at every mip level."""
    optics = build_camera("mini")
    for size in (64, 333, 2048):
        albedo = np.zeros((size, size, 3), np.uint8)
        lo, hi = round(0.25 * size), round(0.30 * size)
        albedo[lo:hi, round(0.60 * size) : round(0.65 * size)] = 255
        wall = Quad([-300, -300, 600], [600, 0, 0], [0, 600, 0], Texture(albedo))
        scene = Scene("spot", (wall,), (), (), np.zeros(3), np.zeros(3), 1.0, 1.0)
        view = Renderer(optics, 16).render_pinhole(
            PackedScene(scene), RigidTransform.identity(), 0.5
        )
        light = view.luminance.astype(float)
        rows, cols = np.mgrid[: light.shape[0], : light.shape[1]]
        found = np.array([(light * cols).sum(), (light * rows).sum()]) / light.sum()
        middle = np.array([(round(0.60 * size) + round(0.65 * size)) / 2, (lo + hi) / 2]) / size
        point = wall.origin_world_mm[:2] + 600 * middle
        expected = view.focal_px * point / 600 + view.principal_point_px
        np.testing.assert_allclose(found, expected, atol=0.05)


def test_fine_texture_is_averaged_before_it_is_sampled():
    """A texture far finer than a pixel has no noise left even with one ray, near or far."""
    rng = np.random.default_rng(0)
    albedo = np.repeat(rng.integers(0, 256, (2048, 2048, 1), dtype=np.uint8), 3, axis=2)
    for depth in (400.0, 1600.0):
        wall = Quad(
            [-0.1 * depth, -0.1 * depth, depth], [50.0, 0, 0], [0, 50.0, 0], Texture(albedo)
        )
        scene = Scene("fine", (wall,), (), (), np.zeros(3), np.zeros(3), 1.0, 1.0)
        view = Renderer(build_camera("mini"), 1).render_pinhole(
            PackedScene(scene), RigidTransform.identity(), 1.0
        )
        seen = view.luminance[np.isfinite(view.depth_mm)]
        inner = np.abs(seen - np.median(seen)) < 0.25  # the rim pixels mix with the background
        assert inner.mean() > 0.8
        # White noise of std 0.29 over n texels: each pixel's footprint covers n of them.
        texels = (0.5 * depth / view.focal_px / (50.0 / 2048)) ** 2
        assert seen[inner].std() < 3 * 0.29 / np.sqrt(texels)


def test_wrong_input_is_named():
    optics = build_camera("mini")
    with pytest.raises(InputError, match="rays per pixel is 0"):
        Renderer(optics, 0)
    with pytest.raises(InputError, match="not inside the image"):
        Renderer(optics, 1).render_raw(
            PackedScene(Scene("", (), (), (), np.ones(3), np.zeros(3), 1.0, 1.0)),
            RigidTransform.identity(),
            0,
            (630, 0, 20, 20),
        )
    camera = optics.camera
    folded = PlenopticCamera(
        camera.parameters, camera.pixel_size_mm, camera.grid, BrownDistortion(k0=-4e-6)
    )
    with pytest.raises(InputError, match="folds back inside the image"):
        Renderer(Optics(folded, 1.0, 0.1, optics.focal_planes_v), 1)
    with pytest.raises(InputError, match="in focus at v above 1 or below 0"):
        Optics(camera, 1.0, 0.1, np.array([0.5, 2.0, 3.0]))
    with pytest.raises(ConfigError, match="Did you mean 'mini'"):
        build_camera("minni")


@pytest.mark.parametrize("shape", [(8, 6), (7, 9), (4, 5), (33, 64)])
def test_halved_planes_are_area_averages(rng, shape):
    """Each new texel is the mean of all that it covers, parts of old texels included."""
    planes = rng.uniform(0.0, 255.0, (4, *shape)).astype(np.float32)
    for axis, loop in ((1, halve_rows), (2, halve_columns)):
        size = planes.shape[axis]
        half = size // 2
        cover = np.zeros((half, size))
        for new in range(half):
            low, high = new * size / half, (new + 1) * size / half
            for old in range(size):
                cover[new, old] = max(0.0, min(high, old + 1) - max(low, old))
        wanted = np.moveaxis(np.tensordot(cover * half / size, planes, (1, axis)), 0, axis)
        out = np.empty(wanted.shape, np.float32)
        loop(planes, np.linspace(0.0, size, half + 1), out)
        np.testing.assert_allclose(out, wanted, rtol=1e-6)


def test_halving_both_ways_at_once(rng):
    planes = rng.uniform(0.0, 255.0, (4, 8, 6)).astype(np.float32)
    rows, both = np.empty((4, 4, 6), np.float32), np.empty((4, 4, 3), np.float32)
    halve_rows(planes, np.linspace(0.0, 8.0, 5), rows)
    one_by_one = np.empty_like(both)
    halve_columns(rows, np.linspace(0.0, 6.0, 4), one_by_one)
    halve_both(planes, both)
    np.testing.assert_array_equal(both, one_by_one)


def test_planes_are_rounded():
    planes = np.array([[[-3.0, 0.49, 0.51, 1.5, 2.5, 254.6, 300.0]]], np.float32)
    out = np.empty(planes.shape, np.uint8)
    round_planes(planes, out)
    assert out.tolist() == [[[0, 0, 1, 2, 2, 255, 255]]]
