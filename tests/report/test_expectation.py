"""What to expect of a camera: compared with the metric depth of the package and with plain sums."""

from dataclasses import replace

import numpy as np
import pytest

from lifcal.camera import BrownDistortion
from lifcal.metric.depth import compute_metric_depth
from lifcal.report.expectation import (
    PixelNoise,
    describe_command,
    describe_expectation,
    measure_corner_distortion,
)
from lifcal.simulate import build_camera


@pytest.fixture
def camera(rng):
    plain = build_camera("mini").camera
    n = len(plain.parameter_names)
    spread = rng.normal(size=(n, n)) * 1e-3
    return replace(plain, covariance=spread @ spread.T, scale_source="markers", depth_bias=None)


def test_errors_of_depth(camera, rng):
    u = np.linspace(2.4, 4.0, 4000)
    noise = PixelNoise.measure([(u.reshape(40, 100), np.full((40, 100), 0.01))])
    found = describe_expectation(camera, rng.uniform(400.0, 2500.0, 5000), noise)
    assert found["working_range"] == pytest.approx([410.0, 2490.0], abs=10.0)
    inside = [entry["z_mm"] for entry in found["depth"] if entry["inside"]]
    assert inside == [500.0, 1000.0, 2000.0]
    assert found["depth"][3]["z_mm"] == 5000.0
    assert found["depth"][3]["sigma_mm"] is None
    for entry in found["depth"][:3]:
        here = np.array([camera.array.alpha + camera.array.beta_mm / entry["z_mm"]])
        depth, sigma = compute_metric_depth(camera, here, np.array([0.01]), calibration=True)
        assert depth[0] == pytest.approx(entry["z_mm"], rel=1e-5)
        assert entry["sigma_mm"] == pytest.approx(sigma[0], rel=1e-4)
        _, noise_alone = compute_metric_depth(camera, here, np.array([0.01]))
        assert entry["sigma_pixel_mm"] == pytest.approx(noise_alone[0], rel=1e-4)
        assert entry["sigma_calibration_mm"] ** 2 + entry["sigma_pixel_mm"] ** 2 == pytest.approx(
            entry["sigma_mm"] ** 2
        )


def test_noise_by_virtual_depth(rng):
    u = rng.uniform(2.0, 4.0, (300, 300))
    sigma = 0.01 * u * rng.choice([0.5, 1.0, 2.0], u.shape)
    u[:100] = np.nan
    sigma[100, :] = np.nan
    noise = PixelNoise.measure([(u, sigma)])
    for place in (2.5, 3.5):
        np.testing.assert_allclose(noise.at(place), 0.01 * place * np.array([0.5, 1, 2]), rtol=0.08)
    assert PixelNoise.measure([(u[:100], sigma[:100])]) is None


def test_close_ranges_are_told_too(camera):
    found = describe_expectation(camera, np.linspace(120.0, 180.0, 1000), None)
    inside = [entry for entry in found["depth"] if entry["inside"]]
    assert [round(entry["z_mm"]) for entry in inside] == [120, 180]
    assert all(entry["sigma_pixel_mm"] is None for entry in inside)
    assert all(entry["sigma_mm"] == entry["sigma_calibration_mm"] for entry in inside)


def test_without_scale(camera):
    found = describe_expectation(replace(camera, scale_source=None), np.array([1.0, 2.0]), None)
    assert not found["metric"]
    assert found["depth"] == []


def test_view_and_distortion(camera):
    width, height = camera.image_size
    focal = camera.array.focal_px
    flat = replace(camera, distortion=BrownDistortion())
    found = describe_expectation(flat, np.array([]), None)
    x = camera.principal_point_px[0]
    wide = np.arctan((x + 0.5) / focal) + np.arctan((width - 0.5 - x) / focal)
    assert found["field_of_view_deg"][0] == pytest.approx(np.degrees(wide))
    assert found["field_of_view_deg"][2] < np.degrees(
        2 * np.arctan(np.hypot(width, height) / focal)
    )
    assert found["working_range"] is None
    assert found["distortion_corner_px"] == 0.0
    bent = replace(flat, distortion=BrownDistortion(k0=1e-8))
    radius = max(
        np.hypot(a - x, b - camera.principal_point_px[1])
        for a in (-0.5, width - 0.5)
        for b in (-0.5, height - 0.5)
    )
    # to first order in a distortion of less than a pixel
    assert measure_corner_distortion(bent) == pytest.approx(1e-8 * radius**3, rel=0.01)


def test_commands():
    words = ["/usr/bin/lifcal", "calibrate", "my raws", "-o", "a"]
    assert describe_command(words) == "lifcal calibrate 'my raws' -o a"
    assert describe_command(["/x/lifcal/__main__.py", "demo"]) == "lifcal demo"
    assert describe_command(["script.py", "-o", "a"]) is None
    assert describe_command([]) is None
