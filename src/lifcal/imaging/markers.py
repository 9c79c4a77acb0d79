"""ArUco markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray
from lifcal.errors import ConfigError, InputError

DICTIONARY = "DICT_6X6_250"
CELLS_PER_SIDE = 8
"""Number of cells along a side of a marker: six code cells and the black border on both sides."""
DICTIONARIES = tuple(sorted(name for name in dir(cv2.aruco) if name.startswith("DICT_")))
_GUESSES = (
    "DICT_6X6_250",
    "DICT_4X4_250",
    "DICT_5X5_250",
    "DICT_7X7_250",
    "DICT_ARUCO_ORIGINAL",
    "DICT_APRILTAG_36h11",
)
_BY_CHANCE = 3
_LEAST_SIDE_PX = 12.0
_MOST_REACH_PX = 4.0
_HALF_STEPS = 16
_EDGE_PART = (0.12, 0.88)
"""Part of an edge that is used, because blur bends the edge near the corners."""
_CODE_PARTS = (0.25, 0.5, 0.75)
"""Places along the edge of a code cell at which the edge is measured. They are away from its ends,
where blur bends it."""
_LEAST_CELL_PX = 5.0
"""Smallest width of a code cell whose edges can be distinguished: blur is about 2 px wide."""
_AGREE_PX = 0.5
"""Largest distance of a code edge from the place that the corners predict. On clean markers of
rendered recordings the edges scatter by 0.05 to 0.1 px."""
_MOST_PERSPECTIVE = 0.8
"""Largest sum of the two perspective terms of a homography from a square of half side 1. At 1, the
plane of the marker would reach the camera at one of its corners."""
_CLEAR_SHARE = 0.9
"""Share of a code's edges that agree if nothing is hidden. On clean markers it is 0.97 to 1."""
_LEAST_SHARE = 0.75
"""If a smaller share agrees, too much of a marker is hidden to locate it. For a marker with a
corner behind a bowl, 0.93 and more agreed where the fit was right, and 0.62 and less where it was
wrong."""


@dataclass(frozen=True, eq=False)
class Marker:
    """A marker in an image.

    Parameters
    ----------
    id : int
    corners_px : (4, 2) float64
        Corners of the black square, clockwise as printed, from the code's top left.
    """

    id: int
    corners_px: FloatArray


def draw_marker(marker_id: int, cell_px: int = 8) -> npt.NDArray[np.uint8]:
    """Draw a marker of the dictionary DICT_6X6_250, black border included, no white margin.

    Returns
    -------
    (8 cell_px, 8 cell_px) uint8
        Black (0) and white (255) pixels.
    """
    if not 0 <= marker_id < 250:
        raise InputError(f"marker id {marker_id} is not in {DICTIONARY}: needs 0 to 249")
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_6X6_250)
    image = cv2.aruco.generateImageMarker(dictionary, marker_id, CELLS_PER_SIDE * cell_px)
    return np.asarray(image, np.uint8)


def detect_markers(image: npt.NDArray[np.uint8], dictionary: str = DICTIONARY) -> list[Marker]:
    """Find markers in a gray image, with sub-pixel corners, sorted by id.

    Corners are the intersections of lines through the four edges. Blur rounds a corner off, so a
    search for the corner itself (OpenCV's sub-pixel refinement) finds it too far inside, but blur
    does not move a straight edge. Where something hides a part of the edges, the corners are
    computed from the code inside. A marker of which too much is hidden is left out. An id that
    appears twice is left out too, because the two cannot be distinguished.
    """
    if dictionary not in DICTIONARIES:
        raise ConfigError.unknown("marker dictionary", dictionary, DICTIONARIES)
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    codes = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary))
    detector = cv2.aruco.ArucoDetector(codes, parameters)
    corners, ids, _ = detector.detectMarkers(np.ascontiguousarray(image))
    if len(corners) == 0:
        return []
    found = [int(i) for i in np.ravel(ids)]
    pixels = image.astype(np.float32)
    markers = []
    for marker_id, square in sorted(zip(found, corners, strict=True), key=lambda item: item[0]):
        if found.count(marker_id) > 1:
            continue
        by_edges = _refine(pixels, np.asarray(square, np.float64).reshape(4, 2))
        cells = codes.markerSize + 2
        code = cv2.aruco.generateImageMarker(codes, marker_id, cells) > 0
        checked = _check_code(pixels, code, by_edges)
        if checked is not None:
            markers.append(Marker(marker_id, checked))
    return markers


def _refine(image: npt.NDArray[np.float32], corners: FloatArray) -> FloatArray:
    """Return corners from lines through the edges, or the given corners where that fails."""
    lines = np.empty((4, 3))
    for i in range(4):
        line = _fit_edge(image, corners[i], corners[(i + 1) % 4])
        if line is None:
            return corners
        lines[i] = line
    met = np.empty((4, 2))
    for i in range(4):
        cross = np.cross(lines[i - 1], lines[i])
        if abs(cross[2]) < 0.1:
            return corners
        met[i] = cross[:2] / cross[2]
    side = float(np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1).min())
    moved = float(np.linalg.norm(met - corners, axis=1).max())
    return met if moved < side / CELLS_PER_SIDE else corners


def _fit_edge(
    image: npt.NDArray[np.float32], start: FloatArray, end: FloatArray
) -> FloatArray | None:
    """Return the line (a, b, c), a x + b y + c = 0, through the edge from dark to bright."""
    along = end - start
    length = float(np.linalg.norm(along))
    if length < _LEAST_SIDE_PX:
        return None
    along /= length
    out = np.array([along[1], -along[0]])  # outward normal, because the corners are clockwise
    reach = min(_MOST_REACH_PX, 0.8 * length / CELLS_PER_SIDE)
    places = start + np.linspace(*_EDGE_PART, max(int(length), 12))[:, None] * along * length
    steps = np.linspace(-reach, reach, 2 * _HALF_STEPS + 1)
    for _ in range(3):
        off, good = _find_edges(image, places, np.broadcast_to(out, places.shape), steps)
        if good.sum() < 6:
            return None
        points = places[good] + off[good, None] * out
        keep = np.ones(len(points), np.bool_)
        for _ in range(3):
            center = points[keep].mean(axis=0)
            normal = np.linalg.svd(points[keep] - center)[2][1]
            miss = np.abs((points - center) @ normal)
            keep = miss <= max(2.5 * float(np.median(miss)), 1e-3)
        # Repeat with points on the edge that was found, so that the profiles are centered on it.
        places = places - ((places - center) @ normal)[:, None] * normal
    return np.append(normal, -normal @ center)


def _check_code(
    image: npt.NDArray[np.float32], code: BoolArray, corners: FloatArray
) -> FloatArray | None:
    """Return the corners if the edges of the code are where these corners predict them.

    Otherwise return corners that are fitted to the edges, or None if too few edges agree.

    Parameters
    ----------
    image : (height, width) float32
    code : (n_cells, n_cells) bool
        Which cells are white, the black border included.
    corners : (4, 2) float64
    """
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1)
    cell = float(sides.min()) / len(code)
    if cell < _LEAST_CELL_PX:
        return corners
    edges, reach = _list_edges(code), min(_MOST_REACH_PX, 0.4 * cell)
    fitted, share = _fit_code(image, edges, corners, reach)
    if share >= _CLEAR_SHARE:
        moved = float(np.linalg.norm(fitted - corners, axis=1).max())
        return corners if moved < _AGREE_PX else fitted
    # One corner may be far off: try the parallelogram that the three others span.
    for i in range(4):
        start = corners.copy()
        start[i] = corners[i - 1] + corners[(i + 1) % 4] - corners[i - 2]
        again = _fit_code(image, edges, start, reach)
        if again[1] > share:
            fitted, share = again
    return fitted if share >= _LEAST_SHARE else None


def _list_edges(code: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return points on the edges between black and white, and the directions to the white side.

    Both are (n, 2), in a frame in which the marker's corners are at (-1, -1) to (1, 1).
    """
    n = len(code)
    cells = np.pad(code, 1, constant_values=True).astype(np.int8)  # a white margin
    parts = np.array(_CODE_PARTS)
    places, directions = [], []
    for axis in (0, 1):
        rise = np.diff(cells, axis=1 - axis)  # along x for axis 0
        for row, col in np.argwhere(rise != 0):
            # The edge is along y at x = col, or along x at y = row. Cell (1, 1) begins at the
            # marker's corner, because of the margin.
            fixed, first = (col, row - 1) if axis == 0 else (row, col - 1)
            place = np.empty((len(parts), 2))
            place[:, axis] = fixed
            place[:, 1 - axis] = first + parts
            direction = np.zeros_like(place)
            direction[:, axis] = rise[row, col]
            places.append(place)
            directions.append(direction)
    return np.concatenate(places) * (2.0 / n) - 1.0, np.concatenate(directions)


def _fit_code(
    image: npt.NDArray[np.float32],
    edges: tuple[FloatArray, FloatArray],
    corners: FloatArray,
    reach_px: float,
) -> tuple[FloatArray, float]:
    """Fit a homography to the edges of a code; return the corners, and the share that agrees.

    Edges are searched up to `reach_px` from the places that the homography predicts. The fit is
    Gauss-Newton on their distances along the normals, with robust weights for hidden edges.
    """
    places, directions = edges
    square = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    matrix = cv2.getPerspectiveTransform(square.astype(np.float32), corners.astype(np.float32))
    h = np.asarray(matrix, np.float64).ravel()[:8]
    steps = np.linspace(-reach_px, reach_px, 2 * _HALF_STEPS + 1)
    share = 0.0
    for _ in range(12):
        seen, by_place, by_h = _project_plane(h, places)
        # Compute each edge's direction in the image, and its normal towards the white side.
        along = np.einsum("nij,nj->ni", by_place, directions[:, ::-1])
        out = np.stack([along[:, 1], -along[:, 0]], axis=1)
        white = np.einsum("nij,nj->ni", by_place, directions)
        out *= np.sign(np.sum(out * white, axis=1, keepdims=True))
        out /= np.linalg.norm(out, axis=1, keepdims=True)
        off, clear = _find_edges(image, seen, out, steps)
        if clear.sum() < len(h):
            return corners, 0.0
        system = np.einsum("ni,nij->nj", out, by_h)
        change = np.zeros(8)
        for _ in range(10):
            left = off - system @ change
            scale = max(1.5 * float(np.median(np.abs(left[clear]))), 0.15)
            root = clear / (1.0 + (left / scale) ** 2)
            change, *_ = np.linalg.lstsq(system * root[:, None], off * root, rcond=None)
        h = h + change
        share = float(np.mean(clear & (np.abs(off - system @ change) < _AGREE_PX)))
        if not np.abs(h[6:]).sum() < _MOST_PERSPECTIVE:
            return corners, 0.0
        moved = _project_plane(h, square)[0]
        if np.abs(moved - corners).max() < 0.01:
            break
        corners = moved
    return corners, share


def _project_plane(h: FloatArray, places: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the images (n, 2) of places in a plane, and their derivatives by place and by h."""
    rows = np.column_stack([places, np.ones(len(places))])
    depth = rows @ np.append(h[6:], 1.0)
    seen = np.stack([rows @ h[:3], rows @ h[3:6]], axis=1) / depth[:, None]
    by_place = (h[:6].reshape(2, 3)[:, :2] - seen[:, :, None] * h[6:]) / depth[:, None, None]
    by_h = np.zeros((len(places), 2, 8))
    by_h[:, 0, :3] = by_h[:, 1, 3:6] = rows
    by_h[:, :, 6:] = -seen[:, :, None] * places[:, None, :]
    return seen, by_place, by_h / depth[:, None, None]


def _find_edges(
    image: npt.NDArray[np.float32], places: FloatArray, out: FloatArray, steps: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """Return the distances along `out` of edges from dark to bright, and which are clear enough."""
    grid = (places[:, None, :] + steps[:, None] * out[:, None, :]).astype(np.float32)
    x, y = np.ascontiguousarray(grid[:, :, 0]), np.ascontiguousarray(grid[:, :, 1])
    profile = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    slope = np.maximum(np.diff(np.asarray(profile), axis=1), 0.0)
    total = slope.sum(axis=1)
    # The weight is the squared slope, so that noise far from the edge has little influence.
    weight = slope**2
    middle = 0.5 * (steps[1:] + steps[:-1])
    off = weight @ middle / np.maximum(weight.sum(axis=1), 1e-12)
    return off, np.asarray(total > 0.3 * np.median(total))


def guess_dictionary(images: Sequence[npt.NDArray[np.uint8]], given: str) -> str | None:
    """Return another common dictionary with many more markers in the images, or None.

    A few markers may be recognized by chance in a wrong dictionary.
    """
    counts = {
        name: sum(len(detect_markers(image, name)) for image in images)
        for name in {*_GUESSES, given}
    }
    best = max(_GUESSES, key=lambda name: counts[name])
    return best if counts[best] > _BY_CHANCE * counts[given] else None
