"""The plenoptic camera: projection of points into micro images, and metric points from depth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray, check_array, check_indices, read_only
from lifcal.camera import _kernels
from lifcal.camera.depth_bias import DepthBias
from lifcal.camera.distortion import Distortion, NoDistortion
from lifcal.camera.grid import LensIndex, MicroLensGrid
from lifcal.camera.opencv import make_opencv_camera
from lifcal.camera.pinhole import PinholeIntrinsics
from lifcal.camera.pinhole_array import (
    ARRAY_PARAMETERS,
    PHYSICAL_PARAMETERS,
    PhysicalParameters,
    PinholeArray,
)
from lifcal.camera.tilt import TILT_PARAMETERS, ArrayTilt
from lifcal.errors import InputError

_ROUNDING = 1e-13
"""Bound of the rounding error of a variance, relative to the sum of the absolute values of its
terms."""


@dataclass(frozen=True, eq=False)
class MicroImagePoints:
    """Projections of points into micro images: one row for each point and each lens that sees it.

    Parameters
    ----------
    point_indices, lens_indices : (n,) int64
        Sorted by point, then lens.
    points_raw_px : (n, 2) float64
        Recorded raw coordinates.
    """

    point_indices: IntArray
    lens_indices: IntArray
    points_raw_px: FloatArray


@dataclass(frozen=True, eq=False)
class ProjectionJacobian:
    """Projected points in recorded raw coordinates, and their derivatives.

    Parameters
    ----------
    points_raw_px : (n, 2) float64
    by_point : (n, 2, 3) float64
        Derivative with respect to the point in camera coordinates, px / mm.
    by_intrinsics : (n, 2, 5) float64
        Derivative with respect to F, c_x, c_y, alpha and beta. The recorded micro-image centers are
        held fixed, so the columns of c include the motion of the undistorted centers.
    by_distortion : (n, 2, n_parameters) float64
        Derivative with respect to the distortion coefficients, including the motion of the
        undistorted centers.
    by_tilt : (n, 2, 2) float64
        Derivative with respect to t_x and t_y of the array's tilt.
    """

    points_raw_px: FloatArray
    by_point: FloatArray
    by_intrinsics: FloatArray
    by_distortion: FloatArray
    by_tilt: FloatArray
    _points_cam_mm: FloatArray
    _array_by_physical: FloatArray

    @property
    def by_physical(self) -> FloatArray:
        """Derivative with respect to f_L, b_L0, B, c_x and c_y, (n, 2, 5) float64."""
        return self.by_intrinsics @ self._array_by_physical

    @property
    def by_pose(self) -> FloatArray:
        """Derivative with respect to a step of the pose, (n, 2, 6) float64.

        The step is that of `RigidTransform.step` on `cam_from_world`: rotation in rad, then
        translation in mm. The derivative is `by_point @ [-[x]_x | I]`.
        """
        rows = np.empty((len(self.by_point), 2, 6))
        # a @ -[x]_x = (x cross a) for each row a of by_point
        rows[:, :, :3] = np.cross(self._points_cam_mm[:, None, :], self.by_point)
        rows[:, :, 3:] = self.by_point
        return rows


@dataclass(frozen=True, eq=False)
class PlenopticCamera:
    """A micro-lens-array light field camera.

    Parameters
    ----------
    parameters : PhysicalParameters
        f_L, b_L0, B and the principal point.
    pixel_size_mm : float
    grid : MicroLensGrid
        Micro-image centers on the recorded raw image; it also holds the image size.
    distortion : Distortion
    scale_source : str or None
        Source of the metric scale ('simulation', 'markers', ...). None means that lengths in the
        scene, beta and B have no metric meaning.
    covariance : (n_parameters, n_parameters) float64 or None
        Covariance of the parameters in `parameter_names`: F, c_x, c_y, alpha, beta, the distortion
        coefficients and, if the camera has a tilt, t_x and t_y.
    depth_bias : DepthBias or None
        Mean error of depth maps made with this camera; None if it is not known.
    tilt : ArrayTilt or None
        Tilt of the micro-lens array against the sensor; None means that the array is parallel. f_L,
        b_L0, B, alpha and beta are those of a lens whose micro image is at c.
    """

    parameters: PhysicalParameters
    pixel_size_mm: float
    grid: MicroLensGrid
    distortion: Distortion = NoDistortion()  # noqa: RUF009 (frozen)
    scale_source: str | None = None
    covariance: FloatArray | None = None
    depth_bias: DepthBias | None = None
    tilt: ArrayTilt | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.pixel_size_mm) and self.pixel_size_mm > 0.0):
            raise InputError(f"pixel_size_mm is {self.pixel_size_mm}, needs a positive number")
        if self.covariance is not None:
            size = len(self.parameter_names)
            covariance = check_array(self.covariance, "covariance", (size, size), finite=True)
            if not np.allclose(covariance, covariance.T, rtol=1e-9, atol=0.0):
                raise InputError("covariance is not symmetric")
            object.__setattr__(self, "covariance", read_only(covariance.copy()))

    @classmethod
    def from_pinhole_array(
        cls,
        array: PinholeArray,
        pixel_size_mm: float,
        grid: MicroLensGrid,
        distortion: Distortion = NoDistortion(),  # noqa: B008 (frozen)
        scale_source: str | None = None,
        covariance: FloatArray | None = None,
        tilt: ArrayTilt | None = None,
    ) -> PlenopticCamera:
        """Build a camera from F, c, alpha and beta."""
        return cls(
            array.to_physical(pixel_size_mm),
            pixel_size_mm,
            grid,
            distortion,
            scale_source,
            covariance,
            tilt=tilt,
        )

    def __repr__(self) -> str:
        p = self.parameters
        width, height = self.image_size
        return (
            f"PlenopticCamera(f_L={p.focal_length_mm:.6g} mm, b_L0={p.lens_to_array_mm:.6g} mm, "
            f"B={p.array_to_sensor_mm:.6g} mm, c=({p.principal_x_px:.2f}, {p.principal_y_px:.2f}) "
            f"px, {width} x {height} px of {self.pixel_size_mm * 1000:.4g} um, "
            f"{len(self.grid)} lenses, distortion {self.distortion.name})"
        )

    def _repr_html_(self) -> str:
        from lifcal.camera.html import format_camera_html

        return format_camera_html(self)

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the raw image."""
        return self.grid.image_size

    @cached_property
    def array(self) -> PinholeArray:
        """The equivalent pinhole array."""
        return self.parameters.to_pinhole_array(self.pixel_size_mm)

    @cached_property
    def principal_point_px(self) -> FloatArray:
        """The principal point c, (2,)."""
        p = self.parameters
        return read_only(np.array([p.principal_x_px, p.principal_y_px]))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters of the pinhole-array form, in the order of `covariance`."""
        tilt = () if self.tilt is None else TILT_PARAMETERS
        return (*ARRAY_PARAMETERS, *self.distortion.parameter_names(), *tilt)

    @cached_property
    def _intrinsics(self) -> FloatArray:
        """The intrinsics as the kernels need them: F, c_x, c_y, alpha, beta, t_x, t_y."""
        tilt = np.zeros(2) if self.tilt is None else self.tilt.as_vector()
        return read_only(np.concatenate([self.array.as_vector(), tilt]))

    # Uncertainty

    def physical_covariance(self) -> FloatArray | None:
        """Return the covariance of f_L, b_L0, B, c_x, c_y, the distortion and the tilt.

        It is None if the covariance of the camera is not known.
        """
        if self.covariance is None:
            return None
        jacobian = np.eye(len(self.covariance))
        jacobian[:5, :5] = self.array.physical_jacobian(self.pixel_size_mm)
        propagated: FloatArray = jacobian @ self.covariance @ jacobian.T
        # The variance of a parameter that was held fixed consists of rounding errors, and may be
        # negative.
        most = (np.abs(jacobian) @ np.sqrt(np.diag(self.covariance))) ** 2
        held = np.diag(propagated) <= _ROUNDING * most
        propagated[held] = propagated[:, held] = 0.0
        return (propagated + propagated.T) / 2.0

    def sigmas(self) -> dict[str, float]:
        """Return the standard deviation of every parameter by name; empty if not known."""
        physical = self.physical_covariance()
        if physical is None or self.covariance is None:
            return {}
        names = self.parameter_names
        sigmas = dict(
            zip(
                (*PHYSICAL_PARAMETERS, *names[5:]), np.sqrt(np.diag(physical)).tolist(), strict=True
            )
        )
        sigmas.update(zip(names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))
        return sigmas

    def tilt_angles_deg(self) -> tuple[FloatArray, FloatArray | None]:
        """Return the array's angles, (2,), as in `ArrayTilt.from_angles`, and their sigmas.

        The angles are zero if the camera has no tilt; sigmas are None if they are not known. B is
        taken as exact, because its uncertainty changes the angles by less than their own sigmas.
        """
        if self.tilt is None:
            return np.zeros(2), None
        angles = self.tilt.angles_deg(self.parameters, self.pixel_size_mm)
        if self.covariance is None:
            return angles, None
        by_t = self.parameters.array_to_sensor_mm / self.pixel_size_mm
        sigmas = np.sqrt(np.diag(self.covariance)[-2:]) * by_t * np.cos(np.radians(angles)) ** 2
        return angles, np.degrees(sigmas)

    # Centers

    @cached_property
    def _centers(self) -> _kernels.Centers:
        """Undistorted micro-image centers and their derivatives by c and by the distortion."""
        recorded = self.grid.centers_raw_px
        centers = _kernels.Centers.empty(len(recorded), len(self.distortion.parameters))
        _kernels.undistort_centers_with_jacobian(
            self.distortion.model_id,
            self.distortion.parameters,
            self.distortion.fold_radius_px,
            self.parameters.principal_x_px,
            self.parameters.principal_y_px,
            recorded,
            centers,
        )
        return _kernels.Centers(*map(read_only, centers))

    @property
    def image_centers_und_px(self) -> FloatArray:
        """Undistorted micro-image centers C_I, (n_lenses, 2); NaN beyond the distortion's fold."""
        return self._centers.places

    @cached_property
    def lens_centers_px(self) -> FloatArray:
        """Micro-lens centers (C_ML), projected orthogonally on the sensor, (n_lenses, 2)."""
        c = self.principal_point_px
        p = self.parameters
        behind = (1.0 + self._tau(self.image_centers_und_px)) * p.array_to_sensor_mm
        ratio = p.lens_to_array_mm / (p.lens_to_array_mm + behind)
        return read_only(c + (self.image_centers_und_px - c) * ratio[:, None])

    def _tau(self, points_und_px: FloatArray) -> FloatArray:
        """Return the relative change of B_k / b_k by the tilt at undistorted points, (n,)."""
        if self.tilt is None:
            return np.zeros(len(points_und_px))
        return self.tilt.at(points_und_px, self.principal_point_px)

    @cached_property
    def _search(self) -> tuple[LensIndex, float]:
        """Spatial index of the undistorted centers, and an enlargement of micro images.

        The second value is the largest factor by which undistortion enlarges a micro image, with a
        margin of 5 %.
        """
        centers = self.image_centers_und_px
        index = LensIndex(centers, max(self.grid.pitch_px, 1.0))
        jacobians, _ = self.distortion.compute_jacobians(centers, self.principal_point_px)
        finite = jacobians[np.isfinite(jacobians).all(axis=(1, 2))]
        smallest = np.linalg.svd(finite, compute_uv=False)[:, 1].min(initial=1.0)
        return index, 1.05 / max(float(smallest), 0.05)

    # Projection

    def project(self, points_cam_mm: npt.ArrayLike, lenses: npt.ArrayLike) -> FloatArray:
        """Project each point through the lens of the same row, to recorded raw coordinates.

        Parameters
        ----------
        points_cam_mm : (n, 3) float64
        lenses : (n,) int
            Index of a lens in the grid for each point. Whether the lens sees the point is not
            checked.

        Returns
        -------
        (n, 2) float64
            Recorded raw coordinates. They are NaN for a point that is not in front of the camera
            (z <= 0), for one whose image is in the plane of the micro lenses (u = 0), and for a
            lens beyond the distortion's fold (`Distortion.fold_radius_px`).
        """
        points, indices = self._check_pairs(points_cam_mm, lenses)
        out = np.empty((len(points), 2))
        _kernels.project_pairs(
            self._intrinsics,
            self.distortion.model_id,
            self.distortion.parameters,
            points,
            indices,
            self.image_centers_und_px,
            out,
        )
        return out

    def project_with_jacobian(
        self, points_cam_mm: npt.ArrayLike, lenses: npt.ArrayLike
    ) -> ProjectionJacobian:
        """Project as `project` does, with all derivatives."""
        points, indices = self._check_pairs(points_cam_mm, lenses)
        out = np.empty((len(points), 2))
        n_distortion = len(self.distortion.parameters)
        by_tilt = _kernels.BY_DISTORTION + n_distortion
        jacobian = np.empty((len(points), 2, by_tilt + 2))
        _kernels.project_pairs_with_jacobian(
            self._intrinsics,
            self.distortion.model_id,
            self.distortion.parameters,
            points,
            indices,
            self._centers,
            out,
            jacobian,
        )
        return ProjectionJacobian(
            points_raw_px=read_only(out),
            by_point=read_only(jacobian)[:, :, : _kernels.BY_F],
            by_intrinsics=read_only(jacobian)[:, :, _kernels.BY_F : _kernels.BY_DISTORTION],
            by_distortion=read_only(jacobian)[:, :, _kernels.BY_DISTORTION : by_tilt],
            by_tilt=read_only(jacobian)[:, :, by_tilt:],
            _points_cam_mm=points,
            _array_by_physical=self.parameters.array_jacobian(self.pixel_size_mm),
        )

    def project_all(self, points_cam_mm: npt.ArrayLike) -> MicroImagePoints:
        """Project points into every micro image that sees them.

        A micro image sees a point that falls on the image and within `grid.radius_px` of the
        micro-image center, both as recorded. Points not in front of the camera are seen by none.

        Parameters
        ----------
        points_cam_mm : (n_points, 3) float64
        """
        points = check_array(points_cam_mm, "points_cam_mm", (None, 3))
        virtual = self.virtual_from_cam(points)
        index, widening = self._search
        u = self.virtual_depth_from_depth(points[:, 2])
        # With a tilt, lens k sees the point at virtual depth u_k instead of u, and
        # |u_k - u| = |u - 1| |tau_k / (1 + tau_k)|.
        tau = np.nanmax(np.abs(self._tau(self.image_centers_und_px)), initial=0.0)
        tilted = np.abs(u - 1.0) * tau / (1.0 - min(float(tau), 0.5))
        reach = (np.abs(u) + tilted) * self.grid.radius_px * widening
        candidates = index.within(virtual[:, :2], reach)
        owners, lenses = candidates.owners(), candidates.indices
        recorded = self.project(points[owners], lenses)
        offsets = recorded - self.grid.centers_raw_px[lenses]
        width, height = self.image_size
        seen = (
            (np.hypot(offsets[:, 0], offsets[:, 1]) <= self.grid.radius_px)
            & (recorded >= -0.5).all(axis=1)
            & (recorded[:, 0] <= width - 0.5)
            & (recorded[:, 1] <= height - 0.5)
        )
        return MicroImagePoints(
            read_only(owners[seen]), read_only(lenses[seen]), read_only(recorded[seen])
        )

    def _check_pairs(
        self, points_cam_mm: npt.ArrayLike, lenses: npt.ArrayLike
    ) -> tuple[FloatArray, IntArray]:
        points = check_array(points_cam_mm, "points_cam_mm", (None, 3))
        indices = check_indices(lenses, "lenses", len(self.grid))
        if len(points) != len(indices):
            raise InputError(f"{len(points)} points for {len(indices)} lenses")
        return points, indices

    # Depth of a raw image

    def depth(
        self, raw: npt.NDArray[np.generic] | str | Path, *, bayer: str | None = None
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        """Return metric depth, its standard deviation and the focused image of a raw image.

        All three are without distortion, at half the raw's size. The grid is moved to where this
        raw shows the micro images, and nothing is kept for later calls, so the result does not
        depend on any other raw. To prepare once for many raws, or for other sizes or a white image,
        use `lifcal.DepthEngine`; this method uses `DepthEngine.like(camera, raw)`.

        Parameters
        ----------
        raw : (height, width) or (height, width, 3) uint8 or uint16, str or Path
            Pixels, or an image file.
        bayer : str or None
            'rggb', 'grbg', 'gbrg' or 'bggr' for a color mosaic.

        Returns
        -------
        depth_mm, sigma_mm : (rows, cols) float32
            NaN where unknown.
        image : (rows, cols) or (rows, cols, 3) float32
            Brightness, from 0 to 1 (the raw's full scale).
        """
        from lifcal.metric.engine import DepthEngine

        found = DepthEngine.like(self, raw, bayer).run(raw)
        return found.depth_mm, found.sigma_mm, found.image

    # The focused images as images of an ordinary camera

    def pinhole(self, scale: float = 0.5) -> PinholeIntrinsics:
        """Return the pinhole camera of totally focused images without distortion.

        Parameters
        ----------
        scale : float
            Size of the images relative to the raw.
        """
        if not (math.isfinite(scale) and scale > 0.0):
            raise InputError(f"scale is {scale}, needs a positive number")
        width, height = self.image_size
        cx, cy = ((self.principal_point_px + 0.5) * scale - 0.5).tolist()
        focal = self.array.focal_px * scale
        return PinholeIntrinsics(
            max(round(width * scale), 1), max(round(height * scale), 1), focal, focal, cx, cy
        )

    def opencv(self, scale: float = 0.5) -> tuple[FloatArray, FloatArray]:
        """Return K and the distortion coefficients of totally focused images for OpenCV.

        They belong to the images that `lifcal focus` and `lifcal calibrate` write, which have the
        distortion of the raw. Images of `lifcal depth` and `DepthEngine` have the same K and no
        distortion. Pixel centers are integers, as in OpenCV.

        Parameters
        ----------
        scale : float
            Size of the images relative to the raw.

        Returns
        -------
        matrix : (3, 3) float64
            The camera matrix K.
        distortion : (5,) or (8,) float64
            k1, k2, p1, p2, k3, and also k4, k5, k6 if five coefficients are not accurate enough.

        Raises
        ------
        EstimationError
            If OpenCV's coefficients cannot follow the distortion to 0.1 px.
        """
        found = make_opencv_camera(self, scale)
        return found.matrix, found.distortion

    # Virtual image and depth

    def virtual_from_cam(self, points_cam_mm: npt.ArrayLike) -> FloatArray:
        """Return the virtual image points (x_u, y_u, u), relative to micro-image centers.

        `(x_u, y_u)` is an ordinary pinhole image: `c + F (x, y) / z`. If the array is tilted, u is
        the virtual depth at which the lenses around `(x_u, y_u)` see the point.

        Returns
        -------
        (n_points, 3) float64
            Undistorted; NaN for points not in front of the camera.
        """
        points = check_array(points_cam_mm, "points_cam_mm", (None, 3))
        depth = np.where(points[:, 2] > 0.0, points[:, 2], np.nan)
        xy = self.principal_point_px + self.array.focal_px * points[:, :2] / depth[:, None]
        return np.column_stack([xy, self.virtual_depth_from_depth(depth, xy)])

    def cam_from_virtual(self, points_virt: npt.ArrayLike) -> FloatArray:
        """Return the metric points behind virtual image points (x_u, y_u, u).

        Returns
        -------
        (n_points, 3) float64
            Points in camera coordinates, mm; NaN where `u` is not larger than the virtual depth of
            a point at infinity.
        """
        points = check_array(points_virt, "points_virt", (None, 3))
        depth = self.depth_from_virtual_depth(points[:, 2], points[:, :2])
        xy = (points[:, :2] - self.principal_point_px) * (depth / self.array.focal_px)[:, None]
        return np.column_stack([xy, depth])

    def virtual_depth_from_depth(
        self, depth_cam_mm: npt.ArrayLike, at_px: npt.ArrayLike | None = None
    ) -> FloatArray:
        """Return the virtual depth of points; NaN where z is not positive.

        Parameters
        ----------
        depth_cam_mm : (...) float64
        at_px : (..., 2) float64, optional
            Undistorted positions of the points in the image, which only matter if the array is
            tilted. If they are not given, the points are taken to be at c, where
            `u = alpha + beta / z`.
        """
        depth = np.asarray(depth_cam_mm, np.float64)
        depth = np.where(depth > 0.0, depth, np.nan)
        u = self.array.alpha + self.array.beta_mm / depth
        if self.tilt is not None and at_px is not None:
            u = 1.0 + (u - 1.0) / (1.0 + self.tilt.at(at_px, self.principal_point_px))
        return np.asarray(u)

    def depth_from_virtual_depth(
        self, virtual_depth: npt.ArrayLike, at_px: npt.ArrayLike | None = None
    ) -> FloatArray:
        """Return the depth z in mm of points with the given virtual depths.

        The depth is NaN where u is not larger than the virtual depth of a point at infinity.

        Parameters
        ----------
        virtual_depth : (...) float64
        at_px : (..., 2) float64, optional
            Undistorted positions of the points in the image, which only matter if the array is
            tilted. If they are not given, the points are taken to be at c, where
            `z = beta / (u - alpha)`.
        """
        u = np.asarray(virtual_depth, np.float64)
        if self.tilt is not None and at_px is not None:
            u = 1.0 + (u - 1.0) * (1.0 + self.tilt.at(at_px, self.principal_point_px))
        above = u - self.array.alpha
        return np.asarray(self.array.beta_mm / np.where(above > 0.0, above, np.nan))

    def virtual_depth_from_paper(self, paper_virtual_depth: npt.ArrayLike) -> FloatArray:
        """Return `u` for the paper's virtual depth `v`.

        They are related by `1/u = (1 - k) + k/v` with `k = b_L0 / (b_L0 + B)`.
        """
        p = self.parameters
        k = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
        v = np.asarray(paper_virtual_depth, np.float64)
        return np.asarray(v / ((1.0 - k) * v + k))

    def paper_from_virtual_depth(self, virtual_depth: npt.ArrayLike) -> FloatArray:
        """Return the paper's virtual depth `v = (b_L - b_L0) / B` for `u`."""
        p = self.parameters
        k = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
        u = np.asarray(virtual_depth, np.float64)
        return np.asarray(k * u / (1.0 - (1.0 - k) * u))
