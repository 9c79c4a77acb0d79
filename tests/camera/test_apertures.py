import numpy as np
import pytest

from lifcal.camera import Apertures, OverlapDiscs, compute_disc_overlap
from lifcal.errors import InputError
from lifcal.simulate import build_camera
from tests.reference import aperture_twin

# An R5 with 16 mm, and a Keplerian camera: main radius, micro radius, b_L0, B.
GALILEAN = Apertures(2.2, 0.0585, 15.893, 0.376)
KEPLERIAN = Apertures(3.0, 0.1, 18.2, 0.42)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (1.0, 1.0, 0.7),
        (1.0, 0.4, 0.8),
        (0.4, 1.0, 0.8),
        (1.0, 0.3, 0.2),
        (0.3, 1.0, 0.1),
        (2, 3, 4.9),
    ],
)
def test_overlap_against_dense_sampling(a, b, distance):
    area, centroid = compute_disc_overlap(a, b, distance)
    expected_area, expected_centroid = aperture_twin.disc_overlap(
        np.zeros(2), a, np.array([distance, 0.0]), b, samples=2000
    )
    # A raster of 2000 cells across a disc knows the area to about 1e-4 of the disc.
    disc = np.pi * min(a, b) ** 2
    assert area == pytest.approx(expected_area, abs=2e-4 * disc)
    assert centroid == pytest.approx(expected_centroid[0], abs=1e-3)


def test_overlap_at_the_borders():
    area, centroid = compute_disc_overlap(
        [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.5, 2.0], [0.0, 2.0, 0.5, 1.0]
    )
    np.testing.assert_allclose(area, [np.pi, 0.0, np.pi / 4, np.pi], atol=1e-12)
    np.testing.assert_allclose(centroid, [0.0, np.nan, 0.5, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("apertures", "planes", "depths"),
    [(GALILEAN, (2.5, 3.1, 4.2), (2.4, 3.0, 5.0)), (KEPLERIAN, (-3.9,), (-3.0, -5.0))],
)
def test_spot_shift_against_traced_rays(apertures, planes, depths):
    main, _ = apertures.disc_radii_mm(planes[0])
    for plane in planes:
        for depth in depths:
            for share in (0.0, 0.4, 0.8, 1.0):
                offset = share * main
                traced = aperture_twin.spot_centroid(
                    np.array([offset, 0.0]),
                    depth,
                    plane,
                    apertures.micro_radius_mm,
                    apertures.main_radius_mm,
                    apertures.lens_to_array_mm,
                    apertures.array_to_sensor_mm,
                    samples=801,
                )
                shift = float(apertures.compute_spot(offset, plane, depth)[1])
                # The raster's own error, scaled by the defocus.
                blur = apertures.micro_radius_mm * abs(1 / plane - 1 / depth)
                assert shift == pytest.approx(traced[0] - offset, abs=2e-3 * blur + 1e-12)


def test_shift_has_the_sign_of_the_defocus_and_grows_with_it():
    offset = 0.9 * GALILEAN.disc_radii_mm(3.0)[0]
    depths = np.array([2.3, 2.6, 3.0, 3.5, 4.5])
    _, shift = GALILEAN.compute_spot(offset, 3.0, depths)
    assert np.sign(shift).tolist() == [-1, -1, 0, 1, 1]
    assert (np.diff(shift) > 0).all()


def test_illumination_falls_from_the_whole_to_nothing():
    main, micro = GALILEAN.disc_radii_mm(3.0)
    offsets = np.linspace(0.0, main + float(micro) + 0.001, 200)
    light = GALILEAN.compute_illumination(offsets, 3.0)
    assert light[0] == pytest.approx(1.0)
    assert light[-1] == 0.0
    assert (np.diff(light) <= 1e-12).all()


def test_wrong_radius_is_named():
    with pytest.raises(InputError, match="micro_radius_mm is 0"):
        Apertures(1.0, 0.0, 10.0, 0.3)


@pytest.mark.parametrize("shading", [-1e-6, np.nan, np.inf])
def test_a_wrong_shading_is_named(shading):
    with pytest.raises(InputError, match="shading_px2 is"):
        OverlapDiscs(8.0, (2.0,), shading)


def test_overlap_discs_are_those_of_the_apertures():
    apertures = Apertures(2.0, 0.06, 15.9, 0.376)
    planes = np.array([2.5, 4.2])
    main, micro = apertures.disc_radii_mm(planes)
    discs = OverlapDiscs(main / 0.0055, tuple(micro / 0.0055))
    offset = np.linspace(0.0, 0.1, 30)
    for kind, plane in enumerate(planes):
        expected = apertures.compute_illumination(offset, plane)
        found = discs.compute_illumination(offset / 0.0055, kind)
        np.testing.assert_allclose(found, expected / expected[0], atol=1e-12)
    assert discs.reach_px == pytest.approx((main + micro.max()) / 0.0055)


@pytest.mark.parametrize(("main", "micro"), [(0.0, (1.0,)), (1.0, ()), (1.0, (np.nan,))])
def test_overlap_discs_are_checked(main, micro):
    with pytest.raises(InputError, match=r"main_px|micro_px"):
        OverlapDiscs(main, micro)


def test_simulated_grids_know_their_discs():
    optics = build_camera("mini")
    main, micro = optics.apertures.disc_radii_mm(optics.focal_planes_v)
    pixel = optics.camera.pixel_size_mm
    assert optics.camera.grid.discs.main_px == pytest.approx(main / pixel)
    assert optics.camera.grid.discs.micro_px == pytest.approx(micro / pixel)
    smaller = optics.stopped_down(0.5)
    assert smaller.camera.grid.discs.micro_px == pytest.approx(0.5 * micro / pixel)
