"""Synthetic matches with virtual depths: a cloud of points before a camera that moves."""

import numpy as np
from scipy.spatial.transform import Rotation

from lifcal.sfm.rigidity import PairMatches

WIDTH = 2000
MOTIONS = ("turntable", "orbit", "sideways", "handheld")


def make_poses(motion, n_views, rng):
    """Return (rotation, shift) of cam_from_world; the scene is around (0, 0, 1)."""
    middle = np.array([0.0, 0.0, 1.0])
    for time in np.linspace(-0.5, 0.5, n_views):
        if motion == "turntable":
            # about an axis that is inclined towards the camera, through the scene's middle
            axis = np.array([0.0, -np.cos(0.5), np.sin(0.5)])
            rotation = Rotation.from_rotvec(1.2 * time * axis).as_matrix()
            yield rotation, middle - rotation @ middle
        elif motion == "orbit":
            rotation = Rotation.from_euler("yx", [0.5 * time, 0.25 * np.sin(6 * time)]).as_matrix()
            nearer = np.array([0.0, 0.0, 0.15 * np.sin(9 * time)])
            yield rotation, middle - rotation @ middle + nearer
        elif motion == "sideways":
            rotation = Rotation.from_rotvec(rng.normal(scale=0.005, size=3)).as_matrix()
            yield rotation, np.array([0.3 * time, 0.05 * np.sin(7 * time), 0.0])
        elif motion == "rotation":
            yield Rotation.from_rotvec(rng.normal(scale=0.08, size=3)).as_matrix(), np.zeros(3)
        elif motion == "forward":
            yield np.eye(3), np.array([0.0, 0.0, 0.3 * time])
        else:
            rotation = Rotation.from_rotvec(rng.normal(scale=0.08, size=3)).as_matrix()
            shift = rng.normal(scale=[0.04, 0.03, 0.1])
            yield rotation, middle - rotation @ middle + shift


def make_pairs(
    motion,
    focal_widths,
    rng,
    *,
    alpha=0.8,
    middle_u=4.0,
    sigma_u=0.05,
    sigma_px=0.7,
    outliers=0.1,
    resting=0.0,
    radial=0.0,
    relief=0.35,
    n_views=10,
    n_points=150,
):
    """Return pairs of all views; places and u have noise, some matches are wrong, some rest."""
    focal = focal_widths * WIDTH
    half = min(0.45 / focal_widths, 0.5)
    points = np.column_stack(
        [rng.uniform(-half, half, (n_points, 2)), 1.0 + rng.uniform(-relief, relief, n_points)]
    )
    beta = middle_u - alpha
    still = rng.random(n_points) < resting
    views = []
    for index, (rotation, shift) in enumerate(make_poses(motion, n_views, rng)):
        cam = points @ rotation.T + shift
        if index == 0:
            first = cam
        cam = np.where(still[:, None], first, cam)
        xy = cam[:, :2] / cam[:, 2:] * focal_widths
        # x (1 + radial |x|^2) is the ideal place: inverted to first order and once more
        recorded = xy / (1.0 + radial * np.sum(xy**2, axis=1, keepdims=True))
        recorded = xy / (1.0 + radial * np.sum(recorded**2, axis=1, keepdims=True))
        places = recorded * WIDTH + 0.5 * (WIDTH - 1)
        inside = (np.abs(recorded) < 0.5).all(axis=1) & (cam[:, 2] > 0.1)
        places = places + np.where(still[:, None], 0.1, 1.0) * rng.normal(
            scale=sigma_px, size=places.shape
        )
        u = alpha + beta / cam[:, 2] + rng.normal(scale=sigma_u, size=n_points)
        views.append((np.column_stack([places, u]), inside))
    pairs = []
    for i in range(n_views):
        for j in range(i + 1, n_views):
            both = np.flatnonzero(views[i][1] & views[j][1])
            a, b = views[i][0][both], views[j][0][both].copy()
            wrong = rng.random(len(both)) < outliers
            b[wrong] = b[rng.permutation(len(both))[: wrong.sum()]]
            sigma = np.full(len(both), sigma_u)
            pairs.append(PairMatches(i, j, a, b, sigma, sigma))
    return pairs, focal, still
