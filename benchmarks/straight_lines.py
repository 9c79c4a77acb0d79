"""Straightness, in image and depth, of the lines of a checkerboard that fills the image.

Each line is located with sub-pixel accuracy at every pixel along it. The same is done in images
whose distortion is not corrected; there, lines are searched where the true camera records them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from benchmarks.virtual_truth import PROFILE_PX, find_half_crossings
from lifcal.arrays import Float32Array, FloatArray
from lifcal.camera import PlenopticCamera
from lifcal.geometry import RigidTransform
from lifcal.metric import MetricFrame
from lifcal.simulate import Scene, Texture
from lifcal.simulate.textures import make_noise

_FIELD_TEXELS = 120
_BORDER_PX = 24
_LEAST_PX = 400
"""Smallest length in px of a line that is evaluated, about half of the image."""
_FEWEST = 60
_PLACES_A_FIELD = 160
_FARTHEST = 0.6
"""Largest distance of a point from the middle, as a fraction of the image's size. Farther out, a
strong distortion would fold back."""
_CORNER_PX = 6.0
"""Radius in px around crossings of lines that is left out, because black and white change sides."""


@dataclass(frozen=True, eq=False)
class Chart:
    """A board of black and white fields, each with some grain.

    Parameters
    ----------
    scene : Scene
    corners_world_mm : (n_lines, n_corners, 3) float64
        The points where each line crosses the others.
    """

    scene: Scene
    corners_world_mm: FloatArray


def make_chart(wall: Scene) -> Chart:
    """Print a checkerboard on a wall."""
    quad = wall.quads[0]
    width, height = (
        float(np.linalg.norm(edge)) for edge in (quad.edge_u_world_mm, quad.edge_v_world_mm)
    )
    texel_mm = width / quad.texture.albedo.shape[1]
    paper = make_noise(np.random.default_rng(0), (width, height), texel_mm)
    grain = paper.albedo.astype(np.float32)
    rows, cols = (np.arange(n) // _FIELD_TEXELS for n in grain.shape[:2])
    white = ((rows[:, None] + cols) % 2 == 0)[:, :, None]
    albedo = np.where(white, 150.0 + 0.3 * grain, 0.15 * grain).astype(np.uint8)
    shares = [np.arange(1, n // _FIELD_TEXELS) * _FIELD_TEXELS / n for n in grain.shape[:2]]
    corners = (
        quad.origin_world_mm
        + shares[0][:, None, None] * quad.edge_v_world_mm
        + shares[1][:, None] * quad.edge_u_world_mm
    )
    scene = replace(wall, quads=(replace(quad, texture=Texture(albedo)),), markers=())
    return Chart(scene, np.concatenate([corners, np.swapaxes(corners, 0, 1)]))


@dataclass(frozen=True)
class LineShape:
    """Deviation of one line from a straight line.

    Parameters
    ----------
    length_px : float
        Length of the line that was found in the image.
    bend_px : float
        Rms distance from the best straight line in the image.
    depth_bend : float
        Rms deviation of the depth along it from that of a straight line, in per cent.
    """

    length_px: float
    bend_px: float
    depth_bend: float


def measure_lines(
    found: MetricFrame,
    scale: float,
    chart: Chart,
    recorded: PlenopticCamera,
    cam_from_world: RigidTransform,
) -> list[LineShape]:
    """Find the lines of a chart in image and depth.

    Parameters
    ----------
    found : MetricFrame
    scale : float
        Size of its images relative to the raw.
    chart : Chart
    recorded : PlenopticCamera
        The true camera, which predicts the points; it has a distortion if that was not corrected.
    cam_from_world : RigidTransform
        The true pose.
    """
    image = np.asarray(255.0 * found.image, np.float32)
    shapes = []
    for corners in chart.corners_world_mm:
        expected = _expect(cam_from_world.apply(corners), recorded, scale)
        points = _find_line(image, expected)
        if len(points) and np.linalg.norm(points[-1] - points[0]) > _LEAST_PX:
            shapes.append(_measure(points, found.depth_mm))
    return shapes


def _expect(corners_cam_mm: FloatArray, recorded: PlenopticCamera, scale: float) -> FloatArray:
    """Return points along a line, a pixel or less apart, away from its corners; (n, 2) in px."""
    share = np.linspace(0.0, 1.0, _PLACES_A_FIELD)[:, None]
    fields = (1.0 - share) * corners_cam_mm[:-1, None] + share * corners_cam_mm[1:, None]
    ideal = recorded.virtual_from_cam(fields.reshape(-1, 3))[:, :2].reshape(-1, _PLACES_A_FIELD, 2)
    off = np.abs(ideal - recorded.principal_point_px) / recorded.image_size
    ideal = ideal[((fields[:, :, 2:] > 0.0) & (off < _FARTHEST)).all(axis=(1, 2))]
    places = recorded.distortion.distort(ideal.reshape(-1, 2), recorded.principal_point_px)
    places = ((places + 0.5) * scale - 0.5).reshape(ideal.shape)
    ends = np.minimum(*(np.linalg.norm(places - places[:, i, None], axis=2) for i in (0, -1)))
    return np.asarray(places[ends > _CORNER_PX])


def _find_line(image: Float32Array, expected: FloatArray) -> FloatArray:
    """Return the measured points of a line, searched across the expected points; (n, 2) in px."""
    size = np.array(image.shape[::-1])
    expected = expected[((expected > _BORDER_PX) & (expected < size - _BORDER_PX)).all(axis=1)]
    if len(expected) < _FEWEST:
        return expected[:0]
    along = np.gradient(expected, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1)
    across = np.arange(-PROFILE_PX, PROFILE_PX + 0.01, 0.25)
    at = (expected[:, None] + across[:, None] * normal[:, None]).astype(np.float32)
    values = cv2.remap(image, at[:, :, 0], at[:, :, 1], cv2.INTER_CUBIC)
    crossing = find_half_crossings(np.asarray(values, np.float32), across)
    points = expected + crossing[:, None] * normal
    return np.asarray(points[np.isfinite(crossing)])


def _measure(points: FloatArray, depth_mm: Float32Array) -> LineShape:
    middle = points.mean(axis=0)
    _, sizes, axes = np.linalg.svd(points - middle, full_matrices=False)
    along = (points - middle) @ axes[0]
    cols, rows = np.rint(points).astype(np.int64).T
    inverse = 1.0 / depth_mm[rows, cols].astype(np.float64)
    known = np.isfinite(inverse)
    # The inverse depth of a straight line is linear along its image.
    fit = np.polyval(np.polyfit(along[known], inverse[known], 1), along[known])
    return LineShape(
        float(np.ptp(along)),
        float(sizes[1] / np.sqrt(len(points))),
        100.0 * float(np.sqrt(np.mean((inverse[known] / fit - 1.0) ** 2))),
    )
