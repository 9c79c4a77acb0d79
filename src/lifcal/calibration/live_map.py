"""The map of an online calibration: keyframes, and landmarks that are found again in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.calibration.looks import Images, Look
from lifcal.calibration.plenoptic_pnp import (
    MatchNoise,
    PoseFit,
    estimate_pose,
    loosen,
    points_from_virtual,
)
from lifcal.calibration.views import View
from lifcal.camera import BrownDistortion
from lifcal.geometry import RigidTransform
from lifcal.imaging.features import match_features
from lifcal.reconstruction import Reconstruction
from lifcal.sfm import SfmModel

_NEAR_PX = 4.0
"""A feature this near to where a landmark is predicted, raw px, may be that landmark although the
descriptors alone do not tell."""
_ALIKE = 150.0
"""Largest distance of descriptors of such a feature and landmark: half of that between features
of different things, which is 300 in the middle."""
_PLACE_ROUNDS = 4
"""Gauss-Newton steps for the places of landmarks; they begin near their places."""
_FEWEST_DEPTHS = 4
"""Matches with a virtual depth that are needed to look for a pose at all."""


@dataclass(eq=False)
class Keyframe:
    """A frame that is measured.

    Parameters
    ----------
    index : int
        Number of the frame in the recording.
    name : str
    time : float
    cam_from_world : RigidTransform
    look : Look
    images : Images
    landmarks : (n_features,) int64
        Landmark of each feature; -1: none.
    """

    index: int
    name: str
    time: float
    cam_from_world: RigidTransform
    look: Look
    images: Images
    landmarks: IntArray

    def as_view(self) -> View:
        """Return it as the workbench takes it."""
        images = self.images
        return View(
            self.name,
            self.index,
            self.time,
            lambda: images.focused,
            lambda: images.u,
            lambda: images.sigma,
            lambda: images.flat,
        )


@dataclass(frozen=True, eq=False)
class MapMatch:
    """Features of a frame that match landmarks, and the pose that explains them.

    Parameters
    ----------
    features, landmarks : (n,) int64
        The matches.
    fit : PoseFit or None
        None if no pose explains them.
    """

    features: IntArray
    landmarks: IntArray
    fit: PoseFit | None

    @property
    def n_inliers(self) -> int:
        """Matches that agree with the pose."""
        return 0 if self.fit is None else int(self.fit.inliers.sum())


@dataclass(eq=False)
class LiveMap:
    """Keyframes and landmarks in one world frame.

    Parameters
    ----------
    camera : Reconstruction
        Intrinsics, without poses and points.
    """

    camera: Reconstruction
    keyframes: list[Keyframe] = field(default_factory=list)
    points_world: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    descriptors: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 128), np.uint8))
    last_seen: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of the keyframe in which each landmark was found last."""
    noise: MatchNoise = field(default_factory=MatchNoise)

    def match(self, look: Look, prior: RigidTransform | None = None) -> MapMatch:
        """Match a frame to the landmarks, and find its pose."""
        features, landmarks = match_features(look.descriptors, self.descriptors)
        fit = self._fit(look, features, landmarks, self.noise, prior)
        return MapMatch(features, landmarks, fit)

    def match_places(self, look: Look, found: MapMatch, prior: RigidTransform | None) -> MapMatch:
        """Find the pose that explains matches by their places, whatever their virtual depths are.

        For frames of a camera that has changed, whose virtual depths do not fit the map.
        """
        fit = self._fit(look, found.features, found.landmarks, loosen(self.noise), prior)
        return replace(found, fit=fit)

    def _fit(
        self,
        look: Look,
        features: IntArray,
        landmarks: IntArray,
        noise: MatchNoise,
        prior: RigidTransform | None,
    ) -> PoseFit | None:
        """Return the pose that explains matches; None if there is none, or too few show depth."""
        if look.known[features].sum() < _FEWEST_DEPTHS:
            return None
        return estimate_pose(
            self.camera,
            self.points_world[landmarks],
            look.points_virt_px[features],
            look.u[features],
            look.sigma_u[features],
            noise=noise,
            prior=prior,
        )

    def add(
        self, index: int, name: str, time: float, look: Look, images: Images, found: MapMatch | None
    ) -> Keyframe:
        """Add a keyframe: its matches become sightings, its other features new landmarks.

        Parameters
        ----------
        index, name, time
            Number, file name and time of the frame.
        look : Look
        images : Images
        found : MapMatch or None
            With a pose; None for the first keyframe, whose frame becomes the world's.
        """
        pose = RigidTransform.identity()
        owners = np.full(len(look), -1, np.int64)
        if found is not None:
            assert found.fit is not None
            pose = found.fit.cam_from_world
            good = found.fit.inliers
            owners[found.features[good]] = found.landmarks[good]
            self._match_near(look, pose, owners)
        keyframe = Keyframe(index, name, time, pose, look, images, owners)
        self._add_landmarks(keyframe)
        self.keyframes.append(keyframe)
        seen = owners[owners >= 0]
        self.descriptors = self.descriptors.copy()
        self.descriptors[seen] = look.descriptors[owners >= 0]
        self.last_seen[seen] = index
        return keyframe

    def _match_near(self, look: Look, pose: RigidTransform, owners: IntArray) -> None:
        """Give features the landmark that is predicted at their place, if it looks alike.

        What is predicted there but looks different, or is taken, leaves the feature with the mark
        -2: it becomes no new landmark, which would only compete with the old one.
        """
        places, depths = self.camera.virtual_points(pose.apply(self.points_world))
        ahead = np.flatnonzero(np.isfinite(depths))
        free = np.flatnonzero(owners < 0)
        if not len(ahead) or not len(free):
            return
        from scipy.spatial import cKDTree

        distance, nearest = cKDTree(places[ahead]).query(look.points_virt_px[free])
        taken = set(owners[owners >= 0].tolist())
        for feature, off, near in zip(free.tolist(), distance, ahead[nearest], strict=True):
            if not off < _NEAR_PX:
                continue
            apart = look.descriptors[feature].astype(np.float64) - self.descriptors[near]
            if int(near) not in taken and float(np.linalg.norm(apart)) < _ALIKE:
                owners[feature] = near
                taken.add(int(near))
            else:
                owners[feature] = -2

    def _add_landmarks(self, keyframe: Keyframe) -> None:
        look, owners = keyframe.look, keyframe.landmarks
        cam = points_from_virtual(self.camera, look.points_virt_px, look.u)
        new = np.flatnonzero((owners == -1) & np.isfinite(cam).all(axis=1))
        owners[owners < 0] = -1
        owners[new] = len(self.points_world) + np.arange(len(new))
        world = keyframe.cam_from_world.inverse().apply(cam[new])
        self.points_world = np.concatenate([self.points_world, world])
        self.descriptors = np.concatenate([self.descriptors, look.descriptors[new]])
        self.last_seen = np.concatenate([self.last_seen, np.full(len(new), keyframe.index)])

    def list_sightings(
        self, keyframes: Sequence[Keyframe] | None = None
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return landmark, number of the keyframe and feature of each sighting.

        Sorted by landmark and keyframe.
        """
        frames = self.keyframes if keyframes is None else keyframes
        features = [np.flatnonzero(frame.landmarks >= 0) for frame in frames]
        views = np.repeat(np.arange(len(frames)), [len(each) for each in features])
        every = np.concatenate([*features, np.zeros(0, np.int64)])
        points = np.concatenate(
            [
                *(frame.landmarks[each] for frame, each in zip(frames, features, strict=True)),
                np.zeros(0, np.int64),
            ]
        )
        order = np.lexsort((views, points))
        return points[order], views[order], every[order]

    def locate_landmarks(self) -> None:
        """Place the landmarks anew by all their sightings, with the camera and poses of now."""
        points, views, features = self.list_sightings()
        if not len(points):
            return
        frames = self.keyframes
        places = np.empty((len(points), 2))
        u, sigma = np.empty(len(points)), np.empty(len(points))
        for number, frame in enumerate(frames):
            here = views == number
            places[here] = frame.look.points_virt_px[features[here]]
            u[here], sigma[here] = frame.look.u[features[here]], frame.look.sigma_u[features[here]]
        rotations = np.array([frame.cam_from_world.rotation for frame in frames])[views]
        shifts = np.array([frame.cam_from_world.translation_mm for frame in frames])[views]
        self._begin_places(points, places, u, rotations, shifts)
        array, n = self.camera.array, len(self.points_world)
        known = np.isfinite(u) & (sigma > 0.0)
        for _ in range(_PLACE_ROUNDS):
            world = self.points_world[points]
            cam = np.einsum("nij,nj->ni", rotations, world) + shifts
            ahead = cam[:, 2] > 0.0
            z = np.where(ahead, cam[:, 2], 1.0)
            seen, depths = self.camera.virtual_points(np.column_stack([cam[:, :2], z]))
            by_cam = np.zeros((len(points), 3, 3))
            by_cam[:, 0, 0] = by_cam[:, 1, 1] = array.focal_px / z
            by_cam[:, :2, 2] = -array.focal_px * cam[:, :2] / z[:, None] ** 2
            by_cam[:, 2, 2] = -array.beta_mm / z**2
            weights = np.zeros((len(points), 3))
            weights[:, :2] = 1.0 / self.noise.place_px
            weights[known, 2] = 1.0 / (self.noise.factor_u * sigma[known])
            weights[~ahead] = 0.0
            off = np.column_stack([seen - places, np.where(known, depths - u, 0.0)]) * weights
            loss = 1.0 / (1.0 + np.sum(off**2, axis=1) / 6.0)
            rows = np.einsum("nij,njk->nik", by_cam * weights[:, :, None], rotations)
            normal, pull = np.zeros((n, 3, 3)), np.zeros((n, 3))
            np.add.at(normal, points, np.einsum("n,nki,nkj->nij", loss, rows, rows))
            np.add.at(pull, points, np.einsum("n,nki,nk->ni", loss, rows, off))
            size = np.trace(normal, axis1=1, axis2=2)
            some = size > 0.0
            normal[some] += 1e-6 * size[some, None, None] * np.eye(3)
            step = np.zeros((n, 3))
            step[some] = -np.linalg.solve(normal[some], pull[some][..., None])[..., 0]
            depth = np.zeros(n)
            np.maximum.at(depth, points, np.where(ahead, cam[:, 2], 0.0))
            length = np.linalg.norm(step, axis=1)
            limit = 0.3 * depth
            step *= np.minimum(1.0, limit / np.maximum(length, 1e-12))[:, None]
            self.points_world = self.points_world + np.where(np.isfinite(step), step, 0.0)

    def _begin_places(
        self,
        points: IntArray,
        places: FloatArray,
        u: FloatArray,
        rotations: FloatArray,
        shifts: FloatArray,
    ) -> None:
        """Put landmarks where their first sighting with a depth has them, with the new camera."""
        cam = points_from_virtual(self.camera, places, u)
        good = np.flatnonzero(np.isfinite(cam).all(axis=1))
        _, first = np.unique(points[good], return_index=True)
        chosen = good[first]
        world = np.einsum("nji,nj->ni", rotations[chosen], cam[chosen] - shifts[chosen])
        self.points_world = self.points_world.copy()
        self.points_world[points[chosen]] = world

    def relocate(self, keyframe: Keyframe) -> bool:
        """Find the pose of a keyframe anew from the landmarks; tell whether there is one."""
        features = np.flatnonzero(keyframe.landmarks >= 0)
        look = keyframe.look
        fit = estimate_pose(
            self.camera,
            self.points_world[keyframe.landmarks[features]],
            look.points_virt_px[features],
            look.u[features],
            look.sigma_u[features],
            noise=self.noise,
            prior=keyframe.cam_from_world,
        )
        if fit is None:
            return False
        keyframe.cam_from_world = fit.cam_from_world
        return True

    def drop_keyframes(self, keep: Sequence[bool]) -> None:
        """Leave keyframes out; their landmarks stay, to find the place again."""
        self.keyframes = [frame for frame, kept in zip(self.keyframes, keep, strict=True) if kept]

    def drop_landmarks(self, most: int) -> None:
        """Leave out the landmarks that were not found for longest, if there are too many."""
        if len(self.points_world) <= most:
            return
        seen = np.zeros(len(self.points_world), np.int64)
        points, _, _ = self.list_sightings()
        np.add.at(seen, points, 1)
        order = np.lexsort((-seen, -self.last_seen))
        keep: BoolArray = np.zeros(len(seen), np.bool_)
        keep[order[:most]] = True
        number = np.where(keep, np.cumsum(keep) - 1, -1)
        self.points_world = self.points_world[keep]
        self.descriptors = self.descriptors[keep]
        self.last_seen = self.last_seen[keep]
        for frame in self.keyframes:
            owners = frame.landmarks
            frame.landmarks = np.where(owners >= 0, number[np.maximum(owners, 0)], -1)

    def as_reconstruction(self, keyframes: Sequence[Keyframe] | None = None) -> Reconstruction:
        """Return camera, poses of keyframes and all landmarks."""
        frames = self.keyframes if keyframes is None else keyframes
        return replace(
            self.camera,
            rotations=np.array([frame.cam_from_world.rotation for frame in frames]),
            translations_mm=np.array([frame.cam_from_world.translation_mm for frame in frames]),
            points_world_mm=self.points_world,
        )

    def as_model(self, keyframes: Sequence[Keyframe]) -> SfmModel:
        """Return keyframes and the landmarks seen in two of them as structure from motion does."""
        points, views, features = self.list_sightings(keyframes)
        counts = np.bincount(points, minlength=len(self.points_world))
        keep = counts[points] >= 2
        points, views, features = points[keep], views[keep], features[keep]
        places = np.empty((len(points), 2))
        for number, frame in enumerate(keyframes):
            here = views == number
            places[here] = frame.look.points_virt_px[features[here]]
        used, renumbered = np.unique(points, return_inverse=True)
        distortion = self.camera.distortion
        radial = distortion.k0 if isinstance(distortion, BrownDistortion) else 0.0
        return SfmModel(
            self.camera.array.focal_px,
            self.camera.principal_px,
            BrownDistortion(k0=radial),
            tuple(frame.cam_from_world for frame in keyframes),
            self.points_world[used],
            renumbered.astype(np.int64),
            views,
            places,
            0.0,
        )
