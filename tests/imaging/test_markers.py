"""Markers whose corners are known exactly, through blur, turns and perspective."""

import cv2
import numpy as np
import pytest

from lifcal.errors import ConfigError, InputError
from lifcal.imaging.markers import (
    CELLS_PER_SIDE,
    _check_code,
    _refine,
    detect_markers,
    draw_marker,
    guess_dictionary,
)

SIZE = (240, 200)
FINE = 6
"""Samples of a pixel along each side."""
CELL = 16


def print_code(marker_id, dictionary=cv2.aruco.DICT_6X6_250, cells=CELLS_PER_SIDE):
    """Return a marker with a white margin of one cell; its corners are at CELL and further."""
    marker = cv2.aruco.generateImageMarker(
        cv2.aruco.getPredefinedDictionary(dictionary), marker_id, cells * CELL
    )
    return np.pad(marker, CELL, constant_values=255)


def square(center, side, turn_deg=0.0, lean=0.0):
    """Corners of a square, clockwise from the top left, turned, and leaning in perspective."""
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]) * side / 2
    turn = np.deg2rad(turn_deg)
    corners = corners @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    away = 1.0 + lean * corners[:, 1:] / side
    return np.asarray(center) + corners / away


def render(prints, blur_px, rng=None, size=SIZE):
    """Return 8-bit gray of prints at corners, as pixels see them: means over their areas, blurred.

    `prints` are (code, corners): corners of the black square, pixel centers at integers.
    """
    width, height = size
    fine = np.full((height * FINE, width * FINE), 200.0, np.float32)
    for code, corners in prints:
        inner = code.shape[0] - 2 * CELL
        there = CELL + inner * np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        # samples of the fine image, and texels of the print, have their centers at half-integers
        fine_corners = (corners + 0.5) * FINE
        shift = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
        homography = cv2.getPerspectiveTransform(
            fine_corners.astype(np.float32), there.astype(np.float32)
        )
        whole = np.linalg.inv(shift) @ homography @ shift
        reach = 1.5 * np.ptp(fine_corners, axis=0).max() * code.shape[0] / inner / 2
        low = np.maximum(fine_corners.mean(axis=0) - reach, 0).astype(int)
        high = (fine_corners.mean(axis=0) + reach).astype(int)
        part = (slice(low[1], high[1]), slice(low[0], high[0]))
        rows, cols = np.mgrid[
            low[1] : min(high[1], len(fine)), low[0] : min(high[0], fine.shape[1])
        ]
        at = np.stack([cols, rows, np.ones_like(cols)], axis=-1) @ whole.T
        xy = np.rint(at[..., :2] / at[..., 2:]).astype(np.int64)
        inside = ((xy >= 0) & (xy < code.shape[0])).all(axis=-1)
        values = code[tuple(np.clip(xy, 0, code.shape[0] - 1).transpose(2, 0, 1)[::-1])]
        fine[part] = np.where(inside, 20.0 + 0.8 * values, fine[part])
    if blur_px > 0.0:
        fine = cv2.GaussianBlur(fine, (0, 0), blur_px * FINE)
    image = fine.reshape(height, FINE, width, FINE).mean(axis=(1, 3))
    if rng is not None:
        image = image + rng.normal(scale=1.0, size=image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def opencv_detections(image):
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_6X6_250)
    corners, _, _ = cv2.aruco.ArucoDetector(dictionary, parameters).detectMarkers(image)
    return [square.reshape(4, 2).astype(np.float64) for square in corners]


def opencv_corners(image):
    (corners,) = opencv_detections(image)
    return corners


def mean_side(corners):
    return float(np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1).mean())


POSES = [
    {"turn_deg": 0.0},
    {"turn_deg": 17.0},
    {"turn_deg": 77.0, "lean": 0.15},
    {"turn_deg": -140.0, "lean": 0.25},
]


def hide(image, corners, which, along, across, value=165):
    """Return the image with something bright before a corner: so much of its two edges is hidden.

    `along` is the hidden part of the edge to the next corner, `across` that to the one before.
    """
    corner, after, before = corners[which], corners[(which + 1) % 4], corners[which - 1]
    outside = corner - 0.4 * (after + before - 2.0 * corner)
    shape = [corner + along * (after - corner), outside + (after - corner) * along, outside]
    shape += [outside + (before - corner) * across, corner + across * (before - corner)]
    hidden = image.copy()
    hull = cv2.convexHull(np.rint(shape).astype(np.int32))
    cv2.fillConvexPoly(hidden, hull, value, lineType=cv2.LINE_AA)
    return hidden


def test_a_hidden_corner_is_told_by_the_code(rng):
    by_opencv, by_edges, ours = [], [], []
    for pose in POSES:
        true = square((119.5, 99.5), 96.0, **pose)
        clean = render([(print_code(20), true)], 0.8, rng)
        for which in range(4):
            image = hide(clean, true, which, 0.4, 0.12)
            # OpenCV does not see all of them.
            for corners in opencv_detections(image):
                (marker,) = detect_markers(image)
                ours.append(np.linalg.norm(marker.corners_px - true, axis=1).max())
                by_opencv.append(np.linalg.norm(corners - true, axis=1).max())
                lines = _refine(image.astype(np.float32), corners)
                by_edges.append(np.linalg.norm(lines - true, axis=1).max())
    assert len(ours) >= 8
    assert max(ours) < 0.3
    # The checker can fail: without the code, corners are several px off.
    assert np.median(by_opencv) > 3.0
    assert np.median(by_edges) > 3.0


def test_a_marker_that_is_mostly_hidden_is_left_out(rng):
    """What is read may be right, but not where it is: a code whose edges are elsewhere."""
    true = square((119.5, 99.5), 96.0)
    image = render([(print_code(20), true)], 0.8, rng)
    pixels = image.astype(np.float32)
    code = draw_marker(20, cell_px=1) > 0
    assert _check_code(pixels, code, true) is true
    # another marker's code, half of whose edges are not in the image
    assert _check_code(pixels, draw_marker(21, cell_px=1) > 0, true) is None


def test_corners_of_clean_markers_are_those_of_their_edges(rng):
    """The code is a check only: the edges of the square know the corners better."""
    for blur_px in (0.6, 1.6):
        true = square((119.5, 99.5), 90.0, turn_deg=17.0, lean=0.2)
        pixels = render([(print_code(23), true)], blur_px, rng).astype(np.float32)
        corners = _refine(pixels, true + rng.normal(scale=0.4, size=(4, 2)))
        assert _check_code(pixels, draw_marker(23, cell_px=1) > 0, corners) is corners


@pytest.mark.parametrize("blur_px", [0.6, 1.0, 1.6])
def test_corners_and_size(blur_px, rng):
    ours, theirs, sizes, their_sizes = [], [], [], []
    for pose in POSES:
        for side in (58.0, 90.0):
            center = np.array([119.5, 99.5]) + rng.uniform(-0.5, 0.5, 2)
            true = square(center, side, **pose)
            image = render([(print_code(23), true)], blur_px, rng)
            (marker,) = detect_markers(image)
            assert marker.id == 23
            ours.append(np.linalg.norm(marker.corners_px - true, axis=1))
            sizes.append(mean_side(marker.corners_px) / mean_side(true) - 1.0)
            other = opencv_corners(image)
            theirs.append(np.linalg.norm(other - true, axis=1))
            their_sizes.append(mean_side(other) / mean_side(true) - 1.0)
    assert np.mean(ours) < 0.05
    assert abs(np.mean(sizes)) < 1e-3
    # The checker can fail: blur rounds corners off, and who looks for corners finds them inside.
    if blur_px >= 1.0:
        assert np.mean(theirs) > 2.0 * np.mean(ours)
        assert np.mean(their_sizes) < -1.5e-3


def test_small_markers_keep_a_corner_each(rng):
    """Sides of less than twelve px are not long enough for lines: OpenCV's corners then."""
    true = square((40.2, 35.6), 24.0, 10.0)
    image = render([(print_code(5), true)], 0.4, rng, size=(80, 70))
    for marker in detect_markers(image):
        assert np.linalg.norm(marker.corners_px - true, axis=1).max() < 1.0


def test_several_and_twice_the_same(rng):
    spots = [((60.0, 50.0), 7), ((180.0, 50.0), 3), ((60.0, 150.0), 7), ((180.0, 150.0), 249)]
    prints = [(print_code(code), square(center, 60.0, 5.0)) for center, code in spots]
    found = detect_markers(render(prints, 0.6, rng))
    # which one is 7 cannot be told; the others are there in order
    assert [marker.id for marker in found] == [3, 249]
    for marker, spot in zip(found, (1, 3), strict=True):
        assert np.linalg.norm(marker.corners_px - prints[spot][1], axis=1).max() < 0.15
    one = detect_markers(render([prints[0], prints[1]], 0.6, rng))
    assert [marker.id for marker in one] == [3, 7]


def test_nothing_there(rng):
    assert detect_markers(np.full((100, 120), 128, np.uint8)) == []
    assert detect_markers(rng.integers(0, 255, (100, 120)).astype(np.uint8)) == []
    assert guess_dictionary([np.full((100, 120), 128, np.uint8)], "DICT_6X6_250") is None


@pytest.mark.parametrize(
    ("name", "bits"), [("DICT_4X4_250", 4), ("DICT_5X5_250", 5), ("DICT_APRILTAG_36h11", 6)]
)
def test_guess_dictionary(name, bits, rng):
    code = print_code(11, getattr(cv2.aruco, name), bits + 2)
    image = render([(code, square((119.5, 99.5), 90.0, 8.0))], 0.6, rng)
    assert detect_markers(image) == []
    assert guess_dictionary([image, image], "DICT_6X6_250") == name
    (marker,) = detect_markers(image, name)
    assert marker.id == 11
    # the one that was asked for is not another one
    assert guess_dictionary([image, image], name) is None


def test_markers_read_by_chance_do_not_hide_the_dictionary(rng):
    """One reading of the dictionary that was asked for, many of the one they are of."""
    small = [print_code(i, cv2.aruco.DICT_4X4_250, 6) for i in range(4)]
    spots = [(60.0, 50.0), (180.0, 50.0), (60.0, 150.0), (180.0, 150.0)]
    prints = [(code, square(spot, 60.0, 4.0)) for code, spot in zip(small, spots, strict=True)]
    many = render(prints, 0.6, rng)
    one = render([(print_code(9), square((119.5, 99.5), 90.0, 8.0))], 0.6, rng)
    assert guess_dictionary([many, one], "DICT_6X6_250") == "DICT_4X4_250"
    assert guess_dictionary([many, one], "DICT_4X4_250") is None
    # one of each: both are there
    assert guess_dictionary([render(prints[:1], 0.6, rng), one], "DICT_6X6_250") is None


def test_unknown_dictionary():
    with pytest.raises(ConfigError, match="DICT_6X6_250"):
        detect_markers(np.zeros((50, 50), np.uint8), "DICT_6X6_251")


def test_draw_marker():
    image = draw_marker(42, 10)
    assert image.shape == (80, 80)
    assert set(np.unique(image).tolist()) == {0, 255}
    (marker,) = detect_markers(np.pad(image, 30, constant_values=255))
    assert marker.id == 42
    for wrong in (-1, 250):
        with pytest.raises(InputError, match="0 to 249"):
            draw_marker(wrong)
