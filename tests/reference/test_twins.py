"""The slow references compared with each other: formulas, rays and brute force.

Nothing of the package is used. The tolerance is 1e-9 px where two derivations of the same
projection are compared: coordinates are about 1000 px with rounding errors of 1e-12 px, times a few
hundred for the differences b_L - b_L0 and z - f_L.
"""

from __future__ import annotations

import itertools
import zlib
from typing import NamedTuple

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from tests.derivatives.checker import central_difference, check_block, check_columns, complex_step
from tests.reference import aperture_twin, paper_model, ray_twin
from tests.reference.paper_model import Brown, Camera, Division, NoDistortion, Pinholes

TOLERANCE_PX = 1e-9


class Case(NamedTuple):
    camera: Camera
    depth_mm: tuple[float, float]
    rim_px: float  # half of the sensor's diagonal


CASES = {
    "galilean-12": Case(
        Camera(13.181, 12.209, 0.399, 1006.5, 1041.5, 0.0055), (400.0, 3000.0), 1448.0
    ),
    "galilean-16": Case(
        Camera(16.748, 15.893, 0.376, 1018.7, 1054.2, 0.0055), (400.0, 4000.0), 1448.0
    ),
    "galilean-35": Case(
        Camera(35.368, 34.471, 0.370, 1022.0, 1031.0, 0.0055), (1200.0, 6000.0), 1448.0
    ),
    "galilean-50": Case(Camera(50.0, 49.6, 0.337, 2039.0, 1533.0, 0.0055), (600.0, 3000.0), 2550.0),
    "galilean-small": Case(Camera(4.0, 3.7, 0.12, 640.0, 480.0, 0.002), (60.0, 1000.0), 800.0),
    "keplerian-16": Case(Camera(16.7, 22.0, 0.6, 1018.7, 1054.2, 0.0055), (400.0, 4000.0), 1448.0),
    "keplerian-50": Case(Camera(50.0, 60.0, 1.2, 2039.0, 1533.0, 0.0055), (600.0, 3000.0), 2550.0),
    "keplerian-small": Case(Camera(4.0, 6.0, 0.3, 640.0, 480.0, 0.002), (60.0, 1000.0), 800.0),
}
GALILEAN = [name for name in CASES if name.startswith("galilean")]
KEPLERIAN = [name for name in CASES if name.startswith("keplerian")]
DISTORTIONS = ["none", "brown", "division"]

all_cases = pytest.mark.parametrize("name", CASES)
all_distortions = pytest.mark.parametrize("kind", DISTORTIONS)


@pytest.fixture
def rng(request):
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def random_camera(case, rng):
    """One of the cameras, with each length off by up to half a percent."""
    f_L, b_L0, B, c_x, c_y, s = case.camera
    off = rng.uniform(0.995, 1.005, 2)
    return Camera(
        f_L * off[0], b_L0 * off[0], B * off[1], c_x + rng.normal(), c_y + rng.normal(), s
    )


def random_distortion(kind, case, rng):
    """A distortion of several px at the rim of the sensor, of either sign."""
    rim = case.rim_px
    sign = rng.choice([-1.0, 1.0])
    if kind == "brown":
        return Brown(
            k0=sign * rng.uniform(4.0, 12.0) / rim**3,
            k1=rng.uniform(-4.0, 4.0) / rim**5,
            k2=rng.uniform(-2.0, 2.0) / rim**7,
            p0=rng.uniform(-2.0, 2.0) / rim**2,
            p1=rng.uniform(-2.0, 2.0) / rim**2,
        )
    if kind == "division":
        return Division(sign * rng.uniform(4.0, 12.0) / rim**3)
    return NoDistortion()


def bench_of(camera):
    return ray_twin.Bench(
        f_L=camera.f_L, b_L0=camera.b_L0, B=camera.B, c=(camera.c_x, camera.c_y), s=camera.s
    )


def center_of(camera):
    return np.array([camera.c_x, camera.c_y])


def ray_distortion(distortion, camera):
    """The same distortion for the reference by rays, which has its own form of Brown's model."""
    c = center_of(camera)
    if isinstance(distortion, Brown):
        k0, k1, k2, p0, p1 = distortion
        return ray_twin.brown_polar((k0, k1, k2), (p0, p1), c)
    if isinstance(distortion, Division):
        return lambda point: paper_model.distort_division(point, c, distortion)
    return None


def random_sights(case, camera, distortion, rng, count=25, inner=0.0):
    """Points on the sensor (or off its inner part), each with a recorded centre nearby."""
    for _ in range(count):
        z = 1.0 / rng.uniform(1.0 / case.depth_mm[1], 1.0 / case.depth_mm[0])
        radius = case.rim_px * np.sqrt(rng.uniform(inner, 1.0))
        angle = rng.uniform(0.0, 2 * np.pi)
        place = radius * np.array([np.cos(angle), np.sin(angle)])
        L = camera.b_L0 + camera.B
        point = np.array([*(place * camera.s * z / L), z])
        center_und = center_of(camera) + place + rng.uniform(-60.0, 60.0, 2)
        yield point, paper_model.distort(center_und, center_of(camera), distortion)


def assert_agree(first, second, tolerance=TOLERANCE_PX):
    error = np.abs(np.asarray(first) - np.asarray(second)).max()
    assert error <= tolerance, f"{first} and {second} differ by {error}"


# --- projection ------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "sign"), [(GALILEAN, 1.0), (KEPLERIAN, -1.0)])
def test_cases_are_what_they_are_called(names, sign):
    for name in names:
        for z in CASES[name].depth_mm:
            v = paper_model.virtual_depth(z, CASES[name].camera)
            assert 1.0 < sign * v < 30.0, (name, z, v)


@all_cases
@all_distortions
def test_formulas_and_rays_agree(name, kind, rng):
    case = CASES[name]
    for _ in range(4):
        camera = random_camera(case, rng)
        distortion = random_distortion(kind, case, rng)
        moved = []
        for point, center in random_sights(case, camera, distortion, rng):
            formula = paper_model.project(point, center, camera, distortion)
            traced = ray_twin.project(
                point, center, bench_of(camera), ray_distortion(distortion, camera)
            )
            assert_agree(formula, traced)
            undistorted = paper_model.undistort(center, center_of(camera), distortion)
            moved.append(np.hypot(*(undistorted - center)))
        if kind != "none":
            assert 1.0 < max(moved) < 40.0  # the distortion is there, and of a realistic size


@all_cases
def test_equivalent_pinholes_agree(name, rng):
    case = CASES[name]
    camera = random_camera(case, rng)
    pinholes = paper_model.pinholes_from_camera(camera)
    for point, center in random_sights(case, camera, NoDistortion(), rng, 60):
        equivalent = paper_model.project_equivalent(point, center, pinholes)
        assert_agree(equivalent, paper_model.project_ideal(point, center, camera))
        assert_agree(equivalent, ray_twin.project_ideal(point, center, bench_of(camera)))


@all_cases
@all_distortions
def test_chain_from_pinholes_agrees_and_ignores_the_pixel_size(name, kind, rng):
    case = CASES[name]
    camera = random_camera(case, rng)
    distortion = random_distortion(kind, case, rng)
    pinholes = paper_model.pinholes_from_camera(camera)
    for point, center in random_sights(case, camera, distortion, rng, 15):
        expected = paper_model.project(point, center, camera, distortion)
        for s in (camera.s, 0.7 * camera.s):
            assert_agree(
                paper_model.project_from_pinholes(point, center, pinholes, s, distortion), expected
            )


@all_cases
def test_conversion_and_back(name, rng):
    camera = random_camera(CASES[name], rng)
    back = paper_model.camera_from_pinholes(paper_model.pinholes_from_camera(camera), camera.s)
    np.testing.assert_allclose(back, camera, rtol=1e-12)


@all_cases
def test_virtual_image_with_image_centers_is_a_pinhole_image(name, rng):
    """The pinhole image, u, v and the plane at 2 B, computed from the paper's own quantities.

    docs/theory/camera-model.md states these relations.
    """
    case = CASES[name]
    camera = random_camera(case, rng)
    pinholes = paper_model.pinholes_from_camera(camera)
    c = center_of(camera)
    L = camera.b_L0 + camera.B
    k = camera.b_L0 / L
    for point, center in random_sights(case, camera, NoDistortion(), rng, 20):
        z = point[2]
        v = paper_model.virtual_depth(z, camera)
        u = pinholes.alpha + pinholes.beta / z
        virtual = paper_model.virtual_point(point, camera)
        pinhole = c + pinholes.F * point[:2] / z
        assert_agree(
            center + (pinhole - center) / u, paper_model.project_ideal(point, center, camera)
        )
        assert abs(1 / u - ((1 - k) + k / v)) < 1e-12
        assert_agree(virtual - c, (pinhole - c) * paper_model.image_distance(z, camera.f_L) / L)
        assert abs(pinholes.beta / (u - pinholes.alpha) / z - 1) < 1e-9
        # the supplement's projection to the plane at 2 B (eq:projX)
        scale = 2 * camera.B + camera.b_L0
        projected = (virtual - c) / (v * camera.B + camera.b_L0) * scale + c
        assert_agree(projected, c + (pinhole - c) * scale / L)


@all_cases
def test_chief_ray_reaches_the_image_center(name, rng):
    """A point on the line from the main lens' centre away from the lens is seen at C_I."""
    case = CASES[name]
    camera = random_camera(case, rng)
    bench = bench_of(camera)
    for _, center in random_sights(case, camera, NoDistortion(), rng, 10):
        lens = ray_twin.find_lens(center, bench)
        for z in case.depth_mm:
            point = np.array([*(-lens * z / camera.b_L0), z])
            assert_agree(ray_twin.project_ideal(point, center, bench), center)
            assert_agree(paper_model.project_ideal(point, center, camera), center)
        assert_agree(ray_twin.raw_from_bench(lens, bench), paper_model.lens_center(center, camera))


def test_raw_image_is_upright():
    """What is to the right of and below the axis is at larger x and y in the raw image."""
    camera = CASES["galilean-16"].camera
    bench = bench_of(camera)
    c = center_of(camera)
    x_R = ray_twin.project_ideal((30.0, 20.0, 1000.0), c, bench)
    assert (x_R > c).all()
    image, w = ray_twin.image_point((30.0, 20.0, 1000.0), bench)
    assert w > camera.b_L0
    assert (image < 0).all()  # upside down on the sensor itself


def raw_with_image_center(point, center, camera, distortion):
    """A wrong projection, with C_I instead of C_ML."""
    return paper_model.raw_point(
        paper_model.virtual_point(point, camera),
        paper_model.virtual_depth(point[2], camera),
        center,
    )


def raw_with_wrong_sign(point, center, camera, distortion):
    """A wrong projection, whose virtual image is upside down."""
    c = center_of(camera)
    return paper_model.raw_point(
        2 * c - paper_model.virtual_point(point, camera),
        paper_model.virtual_depth(point[2], camera),
        paper_model.lens_center(center, camera),
    )


def raw_with_wrong_depth_sign(point, center, camera, distortion):
    """A wrong projection, with v = (b_L0 - b_L) / B."""
    return paper_model.raw_point(
        paper_model.virtual_point(point, camera),
        -paper_model.virtual_depth(point[2], camera),
        paper_model.lens_center(center, camera),
    )


def raw_with_centers_from_pixel_zero(point, center, camera, distortion):
    """A wrong projection, in which eq:projIToML scales px from the corner of the raw image."""
    ratio = camera.b_L0 / (camera.b_L0 + camera.B)
    return paper_model.raw_point(
        paper_model.virtual_point(point, camera),
        paper_model.virtual_depth(point[2], camera),
        np.asarray(center) * ratio,
    )


@all_cases
@pytest.mark.parametrize(
    "wrong",
    [
        raw_with_image_center,
        raw_with_wrong_sign,
        raw_with_wrong_depth_sign,
        raw_with_centers_from_pixel_zero,
    ],
)
def test_wrong_projection_is_caught(name, wrong, rng):
    case = CASES[name]
    camera = random_camera(case, rng)
    for point, center in random_sights(case, camera, NoDistortion(), rng, 5):
        traced = ray_twin.project(point, center, bench_of(camera))
        with pytest.raises(AssertionError, match="differ by"):
            assert_agree(wrong(point, center, camera, NoDistortion()), traced, 1e-3)


@all_cases
def test_wrong_distortion_is_caught(name, rng):
    case = CASES[name]
    camera = random_camera(case, rng)
    distortion = random_distortion("brown", case, rng)
    k0, k1, k2, p0, p1 = distortion
    c = center_of(camera)
    trace = ray_distortion(distortion, camera)
    for point, center in random_sights(case, camera, distortion, rng, 5):
        traced = ray_twin.project(point, center, bench_of(camera), trace)
        wrong = {
            "centre not undistorted": paper_model.distort(
                paper_model.project_ideal(point, center, camera), c, distortion
            ),
            "point not distorted": paper_model.project_ideal(
                point, paper_model.undistort(center, c, distortion), camera
            ),
            "p0 and p1 swapped": paper_model.project(
                point, center, camera, Brown(k0, k1, k2, p1, p0)
            ),
            "k0 of the other sign": paper_model.project(
                point, center, camera, Brown(-k0, k1, k2, p0, p1)
            ),
        }
        for result in wrong.values():
            with pytest.raises(AssertionError, match="differ by"):
                assert_agree(result, traced, 1e-6)


# --- distortion ------------------------------------------------------------------------------


@all_cases
@all_distortions
def test_undistort_undoes_distort(name, kind, rng):
    case = CASES[name]
    c = center_of(case.camera)
    for _ in range(20):
        distortion = random_distortion(kind, case, rng)
        point = c + rng.uniform(-0.7, 0.7, 2) * case.rim_px
        recorded = paper_model.distort(point, c, distortion)
        assert_agree(paper_model.undistort(recorded, c, distortion), point)
        there = paper_model.distort(paper_model.undistort(point, c, distortion), c, distortion)
        assert_agree(there, point)


@all_distortions
def test_undistort_is_safe_at_the_principal_point(kind, rng):
    case = CASES["galilean-16"]
    c = center_of(case.camera)
    distortion = random_distortion(kind, case, rng)
    assert_agree(paper_model.distort(c, c, distortion), c, 0.0)
    assert_agree(paper_model.undistort(c, c, distortion), c, 0.0)


def test_undistort_refuses_what_has_no_origin():
    # r (1 - r^2) has its fold at r = 0.58, where it is 0.385. Points recorded farther out could
    # only come from points beyond the fold, on the other side.
    for recorded in ((1.0, 0.0), (0.9, 0.0), (0.3, -0.6)):
        with pytest.raises(ArithmeticError, match="no undistorted point"):
            paper_model.undistort_brown(recorded, (0.0, 0.0), Brown(-1.0, 0.0, 0.0, 0.0, 0.0))


def test_brown_by_hand():
    """x' = 1, y' = 2, r^2 = 5, each coefficient on its own, worked out from the supplement."""
    c = (10.0, 20.0)
    point = (11.0, 22.0)
    expected = {
        "k0": (5.0, 10.0),
        "k1": (25.0, 50.0),
        "k2": (125.0, 250.0),
        "p0": (5.0 + 2.0, 4.0),
        "p1": (4.0, 5.0 + 8.0),
    }
    for coefficient, shift in expected.items():
        brown = Brown(0.0, 0.0, 0.0, 0.0, 0.0)._replace(**{coefficient: 1.0})
        moved = paper_model.distort_brown(point, c, brown) - np.array(point)
        np.testing.assert_allclose(moved, shift, rtol=1e-15)


@all_distortions
def test_derivative_of_undistort_is_the_inverse(kind, rng):
    """The imaginary part of a complex step converges too in Newton's iteration."""
    case = CASES["galilean-16"]
    c = center_of(case.camera)
    for _ in range(10):
        distortion = random_distortion(kind, case, rng)
        point = c + rng.uniform(-0.7, 0.7, 2) * case.rim_px
        recorded = paper_model.distort(point, c, distortion)
        forward = complex_step(lambda x, d=distortion: paper_model.distort(x, c, d), point)
        back = complex_step(lambda x, d=distortion: paper_model.undistort(x, c, d), recorded)
        check_block("undistort", back, np.linalg.inv(forward), 1e-12)
        if isinstance(distortion, Brown):
            jacobian = paper_model.distort_brown_jacobian(point, c, distortion)
            check_block("distort", jacobian, forward, 1e-13)


# --- complex steps through the chain ---------------------------------------------------------


def central_steps(lengths, distortion, rim):
    """Steps of central differences: a fraction of each length, and for each coefficient the value
    that moves the rim of the sensor by 0.1 px.
    """
    powers = (3, 5, 7, 2, 2) if isinstance(distortion, Brown) else (3,)
    return np.array([*(1e-5 * np.abs(lengths)), *(0.1 / rim**power for power in powers)])


@all_cases
@pytest.mark.parametrize("kind", ["brown", "division"])
@pytest.mark.parametrize("basis", ["paper", "pinholes"])
def test_complex_steps_through_the_chain(name, kind, basis, rng):
    """Complex steps and central differences agree column by column, so the chain is analytic."""
    case = CASES[name]
    camera = random_camera(case, rng)
    distortion = random_distortion(kind, case, rng)
    form = type(distortion)
    if basis == "paper":
        start = np.array([*camera[:5], *distortion])
        names = [*Camera._fields[:5], *form._fields]
    else:
        start = np.array([*paper_model.pinholes_from_camera(camera), *distortion])
        names = [*Pinholes._fields, *form._fields]
    for point, center in random_sights(case, camera, distortion, rng, 2, inner=0.25):

        def intrinsics(x, point=point, center=center):
            if basis == "paper":
                return paper_model.project(point, center, Camera(*x[:5], camera.s), form(*x[5:]))
            return paper_model.project_from_pinholes(
                point, center, Pinholes(*x[:5]), camera.s, form(*x[5:])
            )

        steps = central_steps(start[:5], distortion, case.rim_px)
        differences = central_difference(intrinsics, start, steps)
        # Differences have rounding errors of 1e-12 px in shifts of 1e-6 px or more.
        check_columns(names, complex_step(intrinsics, start), differences, 1e-5)

        def place(x, center=center):
            return paper_model.project(x, center, camera, distortion)

        check_block(
            "point",
            central_difference(place, point, 1e-4 * point[2]),
            complex_step(place, point),
            1e-4,
        )


@all_cases
def test_pose_derivatives_are_those_of_a_small_motion(name, rng):
    """At w = 0 and tau = 0: dX_C/dw = -[X_C]x and dX_C/dtau = 1, chained with dx/dX_C."""
    case = CASES[name]
    camera = random_camera(case, rng)
    distortion = random_distortion("brown", case, rng)
    rotation = Rotation.random(random_state=int(rng.integers(2**31))).as_matrix()
    for point_cam, center in random_sights(case, camera, distortion, rng, 4):
        translation = rng.normal(size=3) * 100
        point_world = rotation.T @ (point_cam - translation)

        def motion(x, point=point_world, center=center, translation=translation):
            return paper_model.project_world(
                point, rotation, translation, x[:3], x[3:], center, camera, distortion
            )

        by_point = complex_step(
            lambda x, center=center: paper_model.project(x, center, camera, distortion), point_cam
        )
        jacobian = complex_step(motion, np.zeros(6))
        check_block("w", jacobian[:, :3], -by_point @ paper_model.cross_matrix(point_cam), 1e-10)
        check_block("tau", jacobian[:, 3:], by_point, 1e-10)


def test_exponential_is_the_rotation(rng):
    for angle in (0.0, 1e-9, 1e-3, 0.5, 2.0, np.pi, 6.0):
        axis = rng.normal(size=3)
        w = angle * axis / np.linalg.norm(axis)
        np.testing.assert_allclose(
            paper_model.rotation_exponential(w), Rotation.from_rotvec(w).as_matrix(), atol=1e-13
        )
    with pytest.raises(ArithmeticError, match="full turn"):
        paper_model.rotation_exponential((7.0, 0.0, 0.0))


# --- finite apertures: rays ------------------------------------------------------------------


def along(ray, z):
    return ray.origin_cam_mm + z * ray.direction_cam


def focal_length_of(v_T, B):
    return B / (1.0 - 1.0 / v_T)


@all_cases
def test_pixel_through_the_lens_center_sees_the_projected_point(name, rng):
    case = CASES[name]
    camera = random_camera(case, rng)
    bench = bench_of(camera)
    for point, center in random_sights(case, camera, NoDistortion(), rng):
        pixel = paper_model.project_ideal(point, center, camera)
        for f_m in (0.5, 1.0, np.inf):  # a ray through the centre is not deflected by any lens
            ray = ray_twin.trace_pixel(pixel, center, (0.0, 0.0), f_m, bench)
            # in mm: 1e-9 px at this depth, with room for the smallest camera
            assert_agree(along(ray, point[2]), point, 1e-9 * point[2])
            assert ray.direction_cam[2] == 1.0
            assert_agree(ray.main_point_mm, along(ray, 0.0)[:2], 0.0)


@all_cases
def test_in_focus_all_aperture_points_see_one_point(name, rng):
    case = CASES[name]
    camera = random_camera(case, rng)
    bench = bench_of(camera)
    for point, center in random_sights(case, camera, NoDistortion(), rng, 10):
        v = paper_model.virtual_depth(point[2], camera)
        f_m = focal_length_of(v, camera.B)
        pixel = paper_model.project_ideal(point, center, camera)
        for offset in rng.uniform(-0.06, 0.06, (5, 2)):
            ray = ray_twin.trace_pixel(pixel, center, offset, f_m, bench)
            assert_agree(along(ray, point[2]), point, 1e-8 * point[2])
            blurred = ray_twin.trace_pixel(
                pixel, center, offset, focal_length_of(1.2 * v, camera.B), bench
            )
            with pytest.raises(AssertionError, match="differ by"):
                assert_agree(along(blurred, point[2]), point, 1e-6 * point[2])


@all_cases
def test_spot_and_pixel_trace_the_same_rays(name, rng):
    """Rays traced forward by `aperture_twin` and back by `trace_pixel` agree at any focus."""
    case = CASES[name]
    camera = random_camera(case, rng)
    bench = bench_of(camera)
    for point, center in random_sights(case, camera, NoDistortion(), rng, 5):
        v = paper_model.virtual_depth(point[2], camera)
        v_T = v * rng.uniform(0.6, 1.6)
        m0_mm = -(paper_model.project_ideal(point, center, camera) - center) * camera.s
        lens = ray_twin.find_lens(center, bench)
        spot = aperture_twin.trace_spot(
            m0_mm, v, v_T, 0.06, 1.0, camera.b_L0, camera.B, lens, samples=4
        )
        for offset, main, seen in zip(
            spot.offset_mm, spot.main_point_mm, spot.seen_mm, strict=True
        ):
            pixel = center - seen / camera.s
            ray = ray_twin.trace_pixel(pixel, center, offset, focal_length_of(v_T, camera.B), bench)
            assert_agree(ray.main_point_mm, main, 1e-9)
            assert_agree(along(ray, point[2]), point, 1e-8 * point[2])


# --- finite apertures: discs and spots -------------------------------------------------------


@pytest.mark.parametrize("radius", [0.3, 2.0])
@pytest.mark.parametrize("distance", [0.2, 1.0, 1.7])
def test_area_of_equal_discs(radius, distance):
    d = distance * radius
    area, centroid = aperture_twin.disc_overlap((0.0, 0.0), radius, (d, 0.0), radius)
    exact = 2 * radius**2 * np.arccos(d / (2 * radius)) - d / 2 * np.sqrt(4 * radius**2 - d**2)
    # a grid of 1000 cells across
    assert abs(area - exact) < 1e-3 * radius**2
    np.testing.assert_allclose(centroid, (d / 2, 0.0), atol=1e-3 * radius)
    with pytest.raises(AssertionError):  # an error of one percent of the area is detected
        assert abs(1.01 * area - exact) < 1e-3 * radius**2


def test_area_of_discs_of_different_size():
    """A small disc on the edge of a much larger one, whose edge is nearly straight: half of it."""
    area, centroid = aperture_twin.disc_overlap((0.0, 0.0), 1.0, (1e6, 0.0), 1e6)
    assert abs(area - np.pi / 2) < 2e-3
    np.testing.assert_allclose(centroid, (4 / (3 * np.pi), 0.0), atol=2e-3)


def test_overlap_of_contained_and_of_disjoint_discs():
    for discs in (
        ((0.0, 0.0), 3.0, (1.0, 0.5), 0.5),
        ((1.0, 0.5), 0.5, (0.0, 0.0), 3.0),
    ):
        area, centroid = aperture_twin.disc_overlap(*discs)
        assert abs(area - np.pi * 0.25) < 1e-3
        np.testing.assert_allclose(centroid, (1.0, 0.5), atol=1e-3)
    area, centroid = aperture_twin.disc_overlap((0.0, 0.0), 1.0, (3.0, 0.0), 1.0)
    assert area == 0.0
    assert np.isnan(centroid).all()


class Optics(NamedTuple):
    """Apertures of an R5-like camera, f/3; the Keplerian one is longer."""

    micro_radius: float
    main_radius: float
    b_L0: float
    B: float


R5 = Optics(0.0635, 2.68, 15.893, 0.376)
LONG = Optics(0.0635, 2.3, 22.0, 0.6)


def measured_g(m0, v, v_T, optics, **options):
    """Solve m_seen = m (1 + g (1/v_T - 1/v)) for g, along m."""
    m0 = np.asarray(m0)
    seen = aperture_twin.spot_centroid(m0, v, v_T, *optics, **options)
    return float((seen - m0) @ m0 / (m0 @ m0)) / (1 / v_T - 1 / v)


def assert_sign(g, sign):
    assert sign * g > 0.02, f"g = {g} has not the sign {sign}"


def test_no_vignetting_no_shift():
    wide = R5._replace(main_radius=100.0)
    for v_T in (2.0, 4.0, 8.0):
        seen = aperture_twin.spot_centroid((0.03, -0.01), 4.0, v_T, *wide)
        np.testing.assert_allclose(seen, (0.03, -0.01), atol=1e-12)  # a symmetric grid


def test_in_focus_no_shift():
    for m0 in ((0.02, 0.0), (0.055, -0.01)):
        seen = aperture_twin.spot_centroid(m0, 4.0, 4.0, *R5)
        np.testing.assert_allclose(seen, m0, atol=1e-12)  # all rays land in one point


def test_on_the_axis_of_the_micro_image_no_shift():
    seen = aperture_twin.spot_centroid((0.0, 0.0), 4.0, 2.0, *R5._replace(main_radius=1.0))
    np.testing.assert_allclose(seen, (0.0, 0.0), atol=1e-12)


@pytest.mark.parametrize("v", [2.5, 4.0, 9.0])
@pytest.mark.parametrize("v_T", [1.8, 3.2, 6.0])
def test_galilean_shift_has_a_positive_g(v, v_T):
    """Outwards if the micro lens is focused nearer than the point, inwards if farther."""
    m0 = np.array([0.058, 0.0])
    g = measured_g(m0, v, v_T, R5)
    assert_sign(g, +1)
    with pytest.raises(AssertionError, match="has not the sign"):
        assert_sign(-g, +1)
    seen = aperture_twin.spot_centroid(m0, v, v_T, *R5)
    assert (seen[0] > m0[0]) == (v_T < v)
    assert abs(seen[1]) < 1e-12


@pytest.mark.parametrize("v", [-8.0, -6.0])
@pytest.mark.parametrize("v_T", [-12.0, -5.0])
def test_keplerian_shift_has_a_negative_g(v, v_T):
    """The rays have crossed at the image, so the main lens' shadow moves in the other direction."""
    assert_sign(measured_g((0.055, 0.02), v, v_T, LONG), -1)


def test_g_does_not_depend_on_the_lens_type_or_the_place():
    """At one virtual depth, the shift is a constant times the defocus, for any lens position."""
    m0 = (0.05, 0.02)
    values = [measured_g(m0, 4.0, v_T, R5) for v_T in (1.7, 2.5, 9.0)]
    values += [measured_g(m0, 4.0, 2.5, R5, lens_mm=lens) for lens in ((3.0, 1.0), (-4.0, 2.0))]
    np.testing.assert_allclose(values, values[0], rtol=1e-3)


def test_g_grows_towards_the_rim():
    """With matched apertures, no light is cut off near the micro-image centre, so g varies."""
    values = [measured_g((m, 0.0), 4.0, 2.0, R5) for m in (0.02, 0.045, 0.05, 0.055, 0.06)]
    assert abs(values[0]) < 1e-12
    assert all(a < b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize(("v", "optics"), [(2.5, R5), (6.0, R5), (-7.0, LONG)])
def test_g_where_the_main_aperture_decides(v, optics):
    """With a small stop, the used rays pass the main lens' centre. The point a where they meet the
    micro lens follows from similar triangles, m0 / B = a / b_L0 + a / (v B). So g may exceed 1."""
    stopped = optics._replace(main_radius=0.02, micro_radius=0.4)
    m0 = np.array([0.03, 0.01])
    per_m = 1.0 / (optics.B / optics.b_L0 + 1.0 / v)
    g = measured_g(m0, v, 1.5 * v, stopped, samples=1501)
    assert abs(g / per_m - 1) < 5e-3  # the grid, in a shadow of few cells
    assert abs(g) > 1


def test_no_ray_no_centroid():
    stopped = R5._replace(main_radius=0.01)
    assert np.isnan(aperture_twin.spot_centroid((0.1, 0.0), 4.0, 2.0, *stopped)).all()
