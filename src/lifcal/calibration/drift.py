"""Whether the camera is still the one that was calibrated: a test on every tracked frame.

A frame that is tracked has some hundred matches with the map, each with a place and a virtual
depth. With the pose of the frame free, they pull on the intrinsics: how far, if one physical length
had changed, is estimated for each length that can change. A cumulative sum (CUSUM) over frames
tells a change from the noise of single frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.calibration.plenoptic_pnp import MatchNoise, pose_rows
from lifcal.camera import PHYSICAL_PARAMETERS, PinholeArray
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Reconstruction

CHANGES: Mapping[str, str] = {
    "b_L0": "the main lens was focused anew, or moved",
    "B": "the micro-lens array moved against the sensor",
    "c_x": "the lens or the array was shifted sideways",
    "c_y": "the lens or the array was shifted up or down",
}
"""What can change in a camera, by the parameter that then changes, in words."""
ESTIMATED_ANEW: Mapping[str, tuple[str, ...]] = {
    "b_L0": ("b_L0",),
    "B": ("B",),
    "c_x": ("c_x", "c_y"),
    "c_y": ("c_x", "c_y"),
}
"""Parameters that are estimated anew after a change, by the one in which it was noticed. What is
bumped hardly ever moves along one axis of the image only."""
_FLOORS = {"b_L0": 2e-4, "B": 2e-3, "c_x": 4e-3, "c_y": 4e-3}
"""Standard deviation of a single frame's estimate beyond noise, as a part of the length (of the
image's width for c): errors of depth maps that the matches of a frame share."""
_NOISE = 2.0
"""Factor on the predicted sigmas of a frame's estimates: neighboring features err together."""
_SLACK = 2.0
"""Deviation in sigmas that a frame may have without adding to the sum."""
_MOST = 7.0
"""Deviation that a single frame can add at most: one bad frame alone raises no alarm."""
_ALARM = 10.0
"""Sum from which on the camera has changed: two frames with more than 7 sigmas, or seven with
3.5."""
_SUSPECT = 3.0
"""Sum from which on frames do not become keyframes: one with 5 sigmas is enough. If the camera has
not changed, the sum falls again by two with every frame."""
_FEWEST = 40
"""Matches that a frame needs to be tested."""


@dataclass(frozen=True)
class Pull:
    """What a frame says about one length, if only this one had changed.

    Parameters
    ----------
    change : float
        By so much, in units of the parameter.
    sigma : float
        By the noise of the matches.
    """

    change: float
    sigma: float


@dataclass(frozen=True)
class Drift:
    """A change of the camera.

    Parameters
    ----------
    parameter : str
        Key of `CHANGES`.
    change : float
        Mean over the frames since the change.
    frames : int
        Number of frames since the change.
    """

    parameter: str
    change: float
    frames: int


@dataclass(eq=False)
class DriftWatch:
    """The cumulative sums over the frames since the last change."""

    sums: dict[str, float] = field(default_factory=dict)
    """By parameter and sign, 'b_L0+' for example."""
    pulls: dict[str, list[float]] = field(default_factory=dict)
    """Changes by frame since the sum was zero last."""

    def add(self, pulls: Mapping[str, Pull], sizes: Mapping[str, float]) -> Drift | None:
        """Take in a frame; return the change if there is one by now.

        Parameters
        ----------
        pulls : mapping of str to Pull
            From `estimate_pulls`.
        sizes : mapping of str to float
            The lengths, and the image's width for c.
        """
        for name, pull in pulls.items():
            spread = float(np.hypot(_NOISE * pull.sigma, _FLOORS[name] * abs(sizes[name])))
            deviation = float(np.clip(pull.change / spread, -_MOST, _MOST))
            for sign, key in ((1.0, f"{name}+"), (-1.0, f"{name}-")):
                total = self.sums.get(key, 0.0) + sign * deviation - _SLACK
                self.sums[key] = max(total, 0.0)
                if total <= 0.0:
                    self.pulls[key] = []
                else:
                    self.pulls.setdefault(key, []).append(pull.change)
        highest = max(self.sums, key=lambda each: self.sums[each], default="")
        if self.sums.get(highest, 0.0) < _ALARM:
            return None
        since = self.pulls[highest]
        return Drift(highest[:-1], float(np.median(since)), len(since))

    @property
    def suspects(self) -> bool:
        """Whether the last frames look as if the camera had changed: none of them is measured."""
        return max(self.sums.values(), default=0.0) > _SUSPECT

    def forget(self) -> None:
        """Begin anew."""
        self.sums.clear()
        self.pulls.clear()


def estimate_pulls(
    camera: Reconstruction,
    pixel_size_mm: float,
    pose: RigidTransform,
    points_world: FloatArray,
    points_virt_px: FloatArray,
    u: FloatArray,
    sigma_u: FloatArray,
    noise: MatchNoise,
) -> dict[str, Pull]:
    """Return for each length of `CHANGES` what matches say about it, with the pose free.

    Parameters
    ----------
    camera : Reconstruction
        Only its intrinsics are used.
    pixel_size_mm : float
    pose : RigidTransform
        `cam_from_world`.
    points_world : (n, 3) float64
    points_virt_px : (n, 2) float64
    u, sigma_u : (n,) float64
        Matches that agree with the pose.
    noise : MatchNoise
    """
    known = np.isfinite(u) & np.isfinite(sigma_u)
    if known.sum() < _FEWEST:
        return {}
    world, places = points_world[known], points_virt_px[known]
    cam = pose.apply(world)
    u, sigma_u = u[known], sigma_u[known]
    rows, residuals = pose_rows(camera, cam, places, u, sigma_u, noise)
    by_array = np.zeros((len(cam), 3, 5))
    by_array[:, :2, 0] = cam[:, :2] / cam[:, 2:]
    by_array[:, 0, 1] = by_array[:, 1, 2] = 1.0
    by_array[:, 2, 3] = 1.0
    by_array[:, 2, 4] = 1.0 / cam[:, 2]
    weights = np.column_stack(
        [np.full((len(cam), 2), 1.0 / noise.place_px), 1.0 / (noise.factor_u * sigma_u)]
    )
    by_array *= weights[:, :, None]
    loss = 1.0 / (1.0 + np.sum(residuals**2, axis=1) / 6.0)
    tall = np.concatenate([rows, by_array], axis=2)
    normal = np.einsum("n,nki,nkj->ij", loss, tall, tall)
    gradient = np.einsum("n,nki,nk->i", loss, tall, residuals)
    poses = normal[:6, :6]
    size = np.sqrt(np.maximum(np.diag(poses), 1e-300))
    scaled = poses / size[:, None] / size + 1e-12 * np.eye(6)
    solved = np.linalg.solve(
        scaled, np.column_stack([normal[:6, 6:], gradient[:6]]) / size[:, None]
    )
    solved /= size[:, None]
    information = normal[6:, 6:] - normal[6:, :6] @ solved[:, :5]
    pull = gradient[6:] - normal[6:, :6] @ solved[:, 5]
    physical = camera.array.to_physical(pixel_size_mm)
    directions = physical.array_jacobian(pixel_size_mm)
    found = {}
    for name in CHANGES:
        direction = directions[:, PHYSICAL_PARAMETERS.index(name)]
        curvature = float(direction @ information @ direction)
        if curvature > 0.0:
            found[name] = Pull(-float(direction @ pull) / curvature, curvature**-0.5)
    return found


def follow_change(camera: Reconstruction, pixel_size_mm: float, drift: Drift) -> Reconstruction:
    """Return the camera with one length changed."""
    physical = camera.array.to_physical(pixel_size_mm)
    fields = {
        "b_L0": "lens_to_array_mm",
        "B": "array_to_sensor_mm",
        "c_x": "principal_x_px",
        "c_y": "principal_y_px",
    }
    name = fields[drift.parameter]
    moved = replace(physical, **{name: getattr(physical, name) + drift.change})
    return replace(camera, array=moved.to_pinhole_array(pixel_size_mm))


def compute_moves(
    array: PinholeArray, pixel_size_mm: float, sigmas: Mapping[str, float]
) -> FloatArray:
    """Return how the pinhole-array form moves if each of some lengths moves by its sigma.

    Parameters
    ----------
    array : PinholeArray
    pixel_size_mm : float
    sigmas : mapping of str to float
        By names of PHYSICAL_PARAMETERS.

    Returns
    -------
    (n_lengths, 5) float64
        Changes of ARRAY_PARAMETERS. b_L0 moves F, alpha and beta together.
    """
    directions = array.to_physical(pixel_size_mm).array_jacobian(pixel_size_mm)
    rows = [sigma * directions[:, PHYSICAL_PARAMETERS.index(n)] for n, sigma in sigmas.items()]
    return np.array(rows).reshape(-1, len(directions))
