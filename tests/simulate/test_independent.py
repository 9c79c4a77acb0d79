"""The simulator's optics against recordings of an independent ray tracer, where these are at hand.

Their truth holds the micro lenses, the recorded micro-image centers, and the best fits of the
camera model to chief rays that their own tracer made. See README.md beside the recordings.
"""

import json

import numpy as np
import pytest

from lifcal.camera import (
    ArrayTilt,
    BrownDistortion,
    MicroLensGrid,
    PhysicalParameters,
    PlenopticCamera,
)
from lifcal.geometry import read_tum
from lifcal.simulate import Imperfections, MicroLenses, Optics, fit_model


@pytest.fixture(scope="module", params=["tilted", "bent"])
def recording(request, shared_data):
    folder = shared_data / "independent" / request.param / "truth"
    if not folder.is_dir():
        pytest.skip(f"the independent recordings are not here: {folder}")
    return folder


def build_optics(folder):
    """Return their camera as `Optics`, from the physical values and the lenses' places alone."""
    truth = json.loads((folder / "camera.json").read_text())
    rows = np.load(folder / "micro_images.npy")
    physical, mla, pixel = truth["physical"], truth["mla"], truth["pixel_mm"]
    imperfections = Imperfections(
        tilt_x_deg=physical["mla_tilt_deg"][0],
        tilt_y_deg=physical["mla_tilt_deg"][1],
        object_distortion_a=-physical["obj_k"][0],
        object_distortion_b=physical["obj_k"][1],
        object_distortion_distance_mm=physical["obj_zref_mm"],
        cos4=physical["cos4"],
    )
    c = (truth["cx_px"], truth["cy_px"])
    parameters = PhysicalParameters(truth["fL_mm"], truth["bL0_mm"], truth["B_mm"], *c)
    paper = truth["distortion_paper"]
    grid = MicroLensGrid.from_centers(
        rows[:, 3:5],
        (truth["width"], truth["height"]),
        radius_px=mla["micro_image_pitch_px"] / 2,
        lens_types=rows[:, 2].astype(int),
    )
    camera = PlenopticCamera(
        parameters,
        pixel,
        grid,
        BrownDistortion(*paper["k"], *paper["p"]),
        tilt=ArrayTilt.from_angles(physical["mla_tilt_deg"], truth["B_mm"], pixel),
    )
    return Optics(
        camera,
        mla["main_aperture_diameter_mm"] / 2,
        mla["micro_aperture_diameter_mm"] / 2,
        np.array(mla["types_focus_virtual_depth"]),
        MicroLenses.from_centers((rows[:, 7:9] - c) * pixel, camera, imperfections),
        imperfections,
    )


def test_their_micro_lenses_and_centers_are_ours(recording):
    optics, rows = build_optics(recording), np.load(recording / "micro_images.npy")
    truth = json.loads((recording / "camera.json").read_text())
    lenses, camera = optics.micro_lenses, optics.camera
    np.testing.assert_allclose(lenses.distances_mm, rows[:, 9], atol=1e-12)
    c = camera.principal_point_px
    ideal = c + lenses.image_centers_mm / camera.pixel_size_mm
    np.testing.assert_allclose(ideal, rows[:, 5:7], atol=1e-9)
    np.testing.assert_allclose(camera.distortion.distort(ideal, c), rows[:, 3:5], atol=1e-9)
    # Their lenses are a lattice but for the jitter.
    mla, physical = truth["mla"], truth["physical"]
    lattice = np.array(mla["lattice_origin_px"]) + rows[:, :2] @ np.array(
        [mla["lattice_e1_px"], mla["lattice_e2_px"]]
    )
    p = camera.parameters
    to_lens = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    jitter = c + (lattice - c) * to_lens - rows[:, 7:9]
    assert jitter.std() == pytest.approx(physical["ml_jitter_px"], rel=0.03, abs=1e-9)


def draw_views(folder, optics, rng):
    """Return points of the first frame's depth map in the frames of all cameras."""
    camera = optics.camera
    depth_mm = 1000.0 * np.load(folder / "depth_pinhole_0000.npy")
    rows, cols = rng.integers(0, np.array(depth_mm.shape)[:, None], (2, 150))
    depth = depth_mm[rows, cols]
    places = np.column_stack([cols, rows])
    xy = (places - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
    points = np.column_stack([xy, depth])[np.isfinite(depth)]
    poses = read_tum(folder / "poses.txt").world_from_cam
    return [(pose.inverse() @ poses[0]).apply(points) for pose in poses]


@pytest.mark.parametrize("with_tilt", [True, False])
def test_their_best_fit_is_ours(recording, with_tilt, rng):
    """Another tracer, another solver, other points of the same room: the same camera."""
    if recording.parent.name != "tilted":
        pytest.skip("the paper's own optics need no best fit")
    name = "pseudo_true_tilt.json" if with_tilt else "pseudo_true.json"
    theirs = json.loads((recording / name).read_text())
    optics = build_optics(recording)
    fit = fit_model(optics, draw_views(recording, optics, rng), with_tilt=with_tilt)
    p = fit.camera.parameters
    # Without a tilt, what the model says depends on where the points are.
    tight = with_tilt
    assert p.focal_length_mm == pytest.approx(theirs["fL"], rel=1e-5 if tight else 2e-4)
    assert p.lens_to_array_mm == pytest.approx(theirs["bL0"], rel=1e-5 if tight else 2e-4)
    assert p.array_to_sensor_mm == pytest.approx(theirs["B"], rel=5e-4 if tight else 4e-3)
    assert p.principal_x_px == pytest.approx(theirs["cx"], abs=0.02 if tight else 0.4)
    assert p.principal_y_px == pytest.approx(theirs["cy"], abs=0.02 if tight else 0.4)
    assert fit.camera.distortion.parameters[0] == pytest.approx(theirs["k0"], rel=0.03)
    assert fit.rms_px == pytest.approx(theirs["rms_px_fitted"], rel=0.4)
    if with_tilt:
        assert fit.rms_px < 0.001
        # Their t is that of B_k, ours that of B_k / b_k: larger by L / b_L0 to first order.
        ratio = (p.lens_to_array_mm + p.array_to_sensor_mm) / p.lens_to_array_mm
        np.testing.assert_allclose(
            fit.camera.tilt.as_vector(), np.array([theirs["tx"], theirs["ty"]]) * ratio, rtol=0.02
        )


def test_the_bent_camera_is_inside_the_model(recording, rng):
    if recording.parent.name != "bent":
        pytest.skip("the tilted camera is not")
    optics = build_optics(recording)
    assert optics.imperfections.is_inside_the_model
    fit = fit_model(optics, draw_views(recording, optics, rng))
    assert fit.rms_px < 1e-6
    np.testing.assert_allclose(
        fit.camera.parameters.as_vector(), optics.camera.parameters.as_vector(), rtol=1e-6
    )
