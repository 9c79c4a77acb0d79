"""Metric depth of frames of a simulated camera with full optics, distortion and noise."""

import threading
import time
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lifcal.camera import DepthBias, MicroLensGrid, NoDistortion
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import make_frame
from lifcal.metric import DepthEngine, MetricOptions, filter_depth
from lifcal.metric.engine import compute_virtual_range
from lifcal.simulate import build_camera
from tests.metric.cases import Recording, true_depth, with_covariance


@pytest.fixture(scope="module")
def mini():
    return Recording()


@pytest.fixture(scope="module")
def engine(mini):
    engine = DepthEngine(mini.camera, mini.vignetting)
    engine.set_range([make_frame(frame.raw, "0", "0.png") for frame in mini.frames])
    return engine


@pytest.fixture(scope="module")
def found(mini, engine):
    return engine.run(mini.frames[0].raw)


def test_depth_against_truth(mini, found):
    true = true_depth(mini.frames[0].view, found.intrinsics)
    both = found.known & np.isfinite(true)
    assert both.mean() > 0.5
    error = found.depth_mm[both] / true[both] - 1.0
    # The coarse pixels of `mini` measure u to 1 %, which is 4 % of z here. Too good is no test.
    assert 0.01 < np.median(np.abs(error)) < 0.06
    assert abs(np.median(error)) < 0.03
    normalized = (found.depth_mm[both] - true[both]) / found.sigma_mm[both]
    spread = 1.4826 * np.median(np.abs(normalized - np.median(normalized)))
    assert 0.7 < spread < 1.4


def test_images_are_those_of_a_pinhole(mini, found):
    """The focused image against the true view, shifted by a pixel it fits worse."""
    k, view = found.intrinsics, mini.frames[0].view
    assert (k.width, k.height) == (320, 240) == found.image.shape[::-1]
    assert k.fx == pytest.approx(mini.camera.array.focal_px / 2.0)
    light = view.luminance[:240, :320]

    def likeness(dx, dy):
        moved = np.roll(found.image, (dy, dx), (0, 1))[20:-20, 20:-20]
        return np.corrcoef(moved.ravel(), light[20:-20, 20:-20].ravel())[0, 1]

    best = likeness(0, 0)
    assert best > 0.9
    assert all(likeness(dx, dy) < best for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)))


def test_unknown_is_unknown_everywhere(found):
    assert (np.isfinite(found.depth_mm) == np.isfinite(found.sigma_mm)).all()
    assert (found.flags[~found.known] != 0).all()


def test_cloud_is_of_the_known_pixels(found):
    cloud = found.cloud()
    assert len(cloud) == found.known.sum()
    np.testing.assert_array_equal(cloud.points_mm[:, 2], found.depth_mm[found.known])


def test_crop_moves_the_principal_point(found):
    part = found.crop(30, 20, 100, 80)
    assert part.depth_mm.shape == part.image.shape == (80, 100)
    whole, cut = found.cloud().points_mm, part.cloud().points_mm
    rows = {tuple(row) for row in np.round(whole, 2).tolist()}
    assert all(tuple(row) in rows for row in np.round(cut[::50], 2).tolist())


def test_the_plane_at_2b_is_a_larger_image(mini, engine, found):
    other = DepthEngine(mini.camera, mini.vignetting, MetricOptions(plane="2B"))
    other.restore_range(engine.depth_range)
    p = mini.camera.parameters
    factor = (p.lens_to_array_mm + 2 * p.array_to_sensor_mm) / (
        p.lens_to_array_mm + p.array_to_sensor_mm
    )
    assert factor > 1.01
    assert other.intrinsics.fx == pytest.approx(factor * engine.intrinsics.fx)
    larger = other.run(mini.frames[0].raw)
    true = true_depth(mini.frames[0].view, larger.intrinsics)
    both = larger.known & np.isfinite(true)
    assert np.median(np.abs(larger.depth_mm[both] / true[both] - 1.0)) < 0.06
    k, k2 = found.intrinsics, larger.intrinsics
    # the upper left corner of the image is in the same direction
    corner = [(-0.5 - k.cx) / k.fx, (-0.5 - k.cy) / k.fy]
    np.testing.assert_allclose([(-0.5 - k2.cx) / k2.fx, (-0.5 - k2.cy) / k2.fy], corner, rtol=1e-9)


def test_a_range_in_mm(mini):
    engine = DepthEngine(mini.camera, mini.vignetting, MetricOptions(range_mm=(400.0, 900.0)))
    low, high = engine.depth_range
    ends = mini.camera.virtual_depth_from_depth(np.array([900.0, 400.0]))
    assert low < ends[0]
    assert high > ends[1]
    depth = engine.run(mini.frames[0].raw).depth_mm
    assert np.nanmin(depth) >= 400.0
    assert np.nanmax(depth) <= 900.0


def test_the_far_end_can_be_nearer_than_asked_for(mini):
    options = MetricOptions(range_mm=(400.0, 900.0))
    engine = DepthEngine(mini.camera, mini.vignetting, options)
    engine.limit_far(700.0)
    assert engine.range_mm == (400.0, 700.0)
    assert np.nanmax(engine.run(mini.frames[0].raw).depth_mm) <= 700.0


def test_the_plane_at_2b_may_have_full_size(mini):
    engine = DepthEngine(mini.camera, mini.vignetting, MetricOptions(scale=1.0, plane="2B"))
    assert engine.intrinsics.width > 640
    with pytest.raises(InputError, match=r"scale is 1.02, needs 0.05 to 1"):
        MetricOptions(scale=1.02)


def test_a_raw_shows_where_the_micro_images_are(mini, found):
    """A grid off by 4 % of the pitch: light is divided out where the raw has it."""
    lattice = mini.camera.grid.lattice
    off = replace(lattice, origin_px=lattice.origin_px + np.array([0.5, 0.0]))
    grid = MicroLensGrid.from_lattice(
        off,
        mini.camera.image_size,
        focal_planes=mini.camera.grid.focal_planes,
        discs=mini.camera.grid.discs,
    )
    camera = replace(mini.camera, grid=grid)
    raw = mini.frames[0].raw
    true = true_depth(mini.frames[0].view, found.intrinsics)

    def far_off(depth_mm):
        return np.mean(
            np.abs(depth_mm / true - 1.0)[np.isfinite(depth_mm) & np.isfinite(true)] > 0.1
        )

    placed = camera.depth(raw)[0]
    fixed = DepthEngine(camera).run(raw).depth_mm
    assert np.isfinite(placed).mean() > 1.5 * np.isfinite(fixed).mean()
    assert far_off(placed) < 0.5 * far_off(fixed)
    assert far_off(placed) < 1.2 * far_off(found.depth_mm) + 0.01


def test_ranges_that_make_no_sense():
    camera = build_camera("mini-keplerian").camera
    low, high = compute_virtual_range(camera, (500.0, 2000.0))
    assert low < high < -1.0
    with pytest.raises(InputError, match="needs one sign"):
        compute_virtual_range(camera, (1.0, 2000.0))


def test_calibration_makes_sigma_larger(mini, engine, found):
    camera = with_covariance(mini.camera)
    other = DepthEngine(camera, mini.vignetting, MetricOptions(calibration_sigma=True))
    other.restore_range(engine.depth_range)
    with_it = other.run(mini.frames[0].raw)
    both = with_it.known & found.known
    assert (with_it.sigma_mm[both] > found.sigma_mm[both]).all()
    np.testing.assert_array_equal(with_it.depth_mm[both], found.depth_mm[both])
    with pytest.raises(InputError, match="no covariance"):
        DepthEngine(mini.camera, mini.vignetting, MetricOptions(calibration_sigma=True))


def test_threads_take_turns_and_get_their_own(mini, engine, found):
    results = {}

    def work(index):
        results[index] = engine.run(mini.frames[index % 2].raw)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results[0].depth_mm, found.depth_mm)
    np.testing.assert_array_equal(results[2].image, found.image)
    np.testing.assert_array_equal(results[1].depth_mm, results[3].depth_mm)
    assert results[0].depth_mm is not results[2].depth_mm


def test_what_is_returned_is_not_touched_again(mini, engine):
    fields = ("depth_mm", "sigma_mm", "image", "flags", "u", "sigma_u")
    first = engine.run(mini.frames[0].raw)
    before = {name: getattr(first, name).copy() for name in fields}
    second = engine.run(mini.frames[1].raw)
    for name in fields:
        np.testing.assert_array_equal(getattr(first, name), before[name], name)
        for other in fields:
            assert not np.shares_memory(getattr(first, name), getattr(second, other))


def test_filters_take_turns_too(mini, engine, monkeypatch):
    """They use the engine's buffers."""
    inside = []

    def slow(*arguments):
        inside.append(1)
        time.sleep(0.05)
        alone.append(len(inside) == 1)
        inside.pop()
        return filter_depth(*arguments)

    alone: list[bool] = []
    monkeypatch.setattr("lifcal.metric.engine.filter_depth", slow)
    threads = [threading.Thread(target=engine.run, args=(mini.frames[0].raw,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone == [True] * 3


def test_warm_up_leaves_no_trace(mini, engine, found):
    other = DepthEngine(mini.camera, mini.vignetting)
    other.warm_up()
    assert other.depth_range is None
    other.restore_range(engine.depth_range)
    np.testing.assert_array_equal(other.run(mini.frames[0].raw).depth_mm, found.depth_mm)


def test_color_of_16_bits(mini, engine):
    raw = np.repeat(mini.frames[0].raw[:, :, None].astype(np.uint16) * 257, 3, axis=2)
    raw[:, :, 0] //= 2
    result = engine.run(raw)
    assert result.image.shape == (240, 320, 3)
    known = result.known
    red, green = (result.image[known][:, channel].mean() for channel in (0, 1))
    assert red == pytest.approx(0.5 * green, rel=0.02)


def test_full_scale_of_16_bits(mini, engine):
    """A dark frame of 12 bits: given, its full scale does not depend on the frames before."""
    dark = mini.frames[0].raw.astype(np.uint16) * 4  # of 4095
    light = np.nanmean(engine.run(mini.frames[0].raw).image)
    given = DepthEngine(mini.camera, mini.vignetting, full_scale=4095)
    given.restore_range(engine.depth_range)
    assert np.nanmean(given.run(dark).image) == pytest.approx(light * 1020 / 4095, rel=1e-3)
    guessed = DepthEngine(mini.camera, mini.vignetting)
    guessed.restore_range(engine.depth_range)
    first = np.nanmean(guessed.run(dark).image)
    assert first == pytest.approx(light * 1020 / 1023, rel=1e-3)
    guessed.run(dark * 4)
    assert np.nanmean(guessed.run(dark).image) == pytest.approx(light * 1020 / 4095, rel=1e-3)
    with pytest.raises(InputError, match="full_scale is 0"):
        DepthEngine(mini.camera, mini.vignetting, full_scale=0)


def test_camera_depth_is_plain_numpy(mini, found):
    depth, sigma, image = mini.camera.depth(mini.frames[0].raw)
    assert depth.shape == sigma.shape == image.shape == (240, 320)
    both = np.isfinite(depth) & found.known
    assert both.mean() > 0.45
    # vignetting of the overlap discs, range of one frame: nearly the same
    assert np.median(np.abs(depth[both] / found.depth_mm[both] - 1.0)) < 0.02
    again, _, _ = mini.camera.depth(mini.frames[0].raw)
    np.testing.assert_array_equal(again, depth)


def test_files_are_taken_where_arrays_are(mini, engine, found, tmp_path):
    raw, white = tmp_path / "raw.png", tmp_path / "white.png"
    write_png(raw, mini.frames[0].raw)
    write_png(white, mini.white)
    other = DepthEngine(mini.camera, str(white))
    other.restore_range(engine.depth_range)
    depth = other.run(raw).depth_mm
    both = np.isfinite(depth) & found.known
    assert both.mean() > 0.99 * found.known.mean()
    # a white image of a file is scaled to 0 ... 1 before it is divided by, which rounds otherwise
    assert np.median(np.abs(depth[both] / found.depth_mm[both] - 1.0)) < 1e-5
    expected = mini.camera.depth(mini.frames[0].raw)
    for ours, theirs in zip(mini.camera.depth(str(raw)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        engine.run(tmp_path / "none.png")
    write_png(raw, 0 * mini.frames[0].raw)
    with pytest.raises(DataError, match=r"raw\.png: black"):
        engine.run(raw)


def test_a_frame_is_drawn_with_its_unit(mini, found):
    assert found.crop(10, 10, 20, 20).plot()[1].get_title() == "depth (mm)"
    plt.close("all")
    bare = DepthEngine(replace(mini.camera, scale_source=None), mini.vignetting)
    bare.restore_range((2.0, 4.0))
    assert bare.run(mini.frames[0].raw).unit == "no scale"


def test_camera_depth_knows_no_raw_before(mini):
    """A raw whose micro images are elsewhere has no say in the next one's result."""
    raw = mini.frames[0].raw
    alone = mini.camera.depth(raw)
    shifted = np.roll(raw, 1, axis=1)
    mini.camera.depth(shifted)
    for before, after in zip(alone, mini.camera.depth(raw), strict=True):
        np.testing.assert_array_equal(before, after)
    # and the shifted one is seen where it is
    fresh = replace(mini.camera)
    np.testing.assert_array_equal(fresh.depth(shifted)[0], mini.camera.depth(shifted)[0])


def test_wrong_input_is_said(mini, engine):
    with pytest.raises(InputError, match="640 x 480"):
        engine.run(mini.frames[0].raw[:-2])
    fresh = DepthEngine(mini.camera, mini.vignetting)
    flat = (0.7 * mini.white).astype(np.uint8)
    with pytest.raises(EstimationError, match="too little texture"):
        fresh.run(flat)


def test_the_bias_of_depth_maps_is_removed(mini, engine, found):
    bias = DepthBias(np.array([2.0, 5.0]), np.array([0.004, 0.004]))
    other = DepthEngine(replace(mini.camera, depth_bias=bias), mini.vignetting)
    other.restore_range(engine.depth_range)
    corrected = other.run(mini.frames[0].raw)
    np.testing.assert_allclose(corrected.u, found.u / 1.004, rtol=1e-6)
    both = corrected.known & found.known
    expected = mini.camera.depth_from_virtual_depth(found.u[both] / 1.004)
    np.testing.assert_allclose(corrected.depth_mm[both], expected, rtol=1e-4)


def test_focus_shift_is_applied(mini, engine, found):
    """Without focal planes in the grid, depth is another one."""
    plain = replace(mini.camera, grid=replace(mini.camera.grid, focal_planes=None))
    other = DepthEngine(plain, mini.vignetting)
    other.restore_range(engine.depth_range)
    without = other.run(mini.frames[0].raw)
    both = without.known & found.known
    assert np.median(np.abs(without.depth_mm[both] / found.depth_mm[both] - 1.0)) > 0.002


def test_distortion_is_corrected(mini, engine, found):
    """The camera said to have none sees things elsewhere."""
    plain = DepthEngine(replace(mini.camera, distortion=NoDistortion()), mini.vignetting)
    plain.restore_range(engine.depth_range)
    assert mini.camera.distortion.parameters.any()
    assert not np.array_equal(plain.run(mini.frames[0].raw).image, found.image)
