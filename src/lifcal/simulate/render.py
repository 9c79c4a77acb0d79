"""Rendering: light on the sensor, ray by ray through both apertures, and the true pinhole view.

Each ray starts at a random position in a pixel, passes a random point of the micro lens' aperture,
is refracted by the thin micro lens, must pass the main aperture, is refracted by the thin main
lens, and takes the radiance of the first surface that it meets. Vignetting and defocus are not
modeled separately; they result from these rays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.errors import ConfigError, InputError
from lifcal.geometry import RigidTransform
from lifcal.simulate import _kernels
from lifcal.simulate.optics import Optics
from lifcal.simulate.scene import Ball, Quad, Scene

_N_SETS = 1024
_TILE_PX = 16
_PREFILTER_PX = 0.5
"""Textures are averaged over this fraction of a pixel before rays sample them. This is about the
diffraction of an f/3 micro lens on a 5 um pixel, and it keeps the noise of a few rays per pixel
small."""

_BLUR_REACH = 4.5
"""Number of standard deviations at which the normal distribution of a blur is cut off. Less than a
hundred thousandth of the light is beyond."""

MONO = 3
BAYER_PATTERNS = {
    "rggb": ((0, 1), (1, 2)),
    "grbg": ((1, 0), (2, 1)),
    "gbrg": ((1, 2), (0, 1)),
    "bggr": ((2, 1), (1, 0)),
}
_LUMINANCE = np.array([0.299, 0.587, 0.114])


def _channels_of(bayer: str | None) -> IntArray:
    """Return the texture channel of each pixel of a 2 x 2 cell."""
    if bayer is None:
        return np.full((2, 2), MONO, np.int64)
    if bayer not in BAYER_PATTERNS:
        raise ConfigError.unknown("Bayer pattern", bayer, BAYER_PATTERNS)
    return np.array(BAYER_PATTERNS[bayer], np.int64)


def make_samples(n_rays: int, seed: int, blur_px: float = 0.0) -> Float32Array:
    """Return sample sets, (1024, n_rays, 4): position in the pixel, position in the unit disc.

    The sets are blocks of a scrambled Sobol sequence. If the number of rays is a power of two, each
    set is evenly distributed over pixel and aperture. Positions in the pixel are from 0 to 1. With
    a blur, a normal random variable is added to them, which blurs the image exactly.
    """
    from scipy.stats import qmc

    if n_rays < 1:
        raise InputError(f"rays per pixel is {n_rays}, needs at least 1")
    sobol = qmc.Sobol(4, scramble=True, rng=np.random.default_rng(seed))
    block = 1 << (n_rays - 1).bit_length()
    points = sobol.random(_N_SETS * block).reshape(_N_SETS, block, 4)[:, :n_rays]
    samples = np.empty_like(points, dtype=np.float32)
    samples[..., :2] = _blur_places(points[..., :2], blur_px) if blur_px > 0.0 else points[..., :2]
    # Map the square to the disc, concentric squares to circles. This preserves areas.
    a, b = 2.0 * points[..., 2] - 1.0, 2.0 * points[..., 3] - 1.0
    wide = np.abs(a) > np.abs(b)
    radius = np.where(wide, a, b)
    other = np.where(wide, b, a)
    angle = np.pi / 4.0 * np.divide(other, radius, out=np.zeros_like(a), where=radius != 0.0)
    angle = np.where(wide, angle, np.pi / 2.0 - angle)
    samples[..., 2] = radius * np.cos(angle)
    samples[..., 3] = radius * np.sin(angle)
    return samples


def _blur_places(places: FloatArray, sigma: float) -> FloatArray:
    """Map uniform variables on [0, 1] monotonically to sums of a uniform and a normal variable."""
    from scipy.special import ndtr

    at = np.linspace(-_BLUR_REACH * sigma, 1.0 + _BLUR_REACH * sigma, 10_001)

    def integral(x: FloatArray) -> FloatArray:
        """Return the integral of the normal distribution function up to x standard deviations."""
        density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
        return np.asarray(x * ndtr(x) + density)

    cumulative = sigma * (integral(at / sigma) - integral((at - 1.0) / sigma))
    return np.interp(places, cumulative, at)


@dataclass(frozen=True, eq=False)
class PinholeView:
    """View of a pinhole camera at the main lens' center: the truth for focused images.

    Parameters
    ----------
    color : (height, width, 3) float32
        Linear red, green, blue.
    depth_mm : (height, width) float32
        Depth z at pixel centers; NaN where the ray meets no surface.
    focal_px : float
    principal_point_px : (2,) float64
    """

    color: Float32Array
    depth_mm: Float32Array
    focal_px: float
    principal_point_px: FloatArray

    @property
    def luminance(self) -> Float32Array:
        """Luminance, with the same weights of the colors as the simulated mono sensor."""
        return np.asarray(self.color @ _LUMINANCE.astype(np.float32), np.float32)


class PackedScene:
    """A scene in the form of arrays for the kernels, with the mip levels of its textures."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        textures = list(dict.fromkeys(surface.texture for surface in self._surfaces()))
        self.texture_of = np.array(
            [textures.index(surface.texture) for surface in self._surfaces()], np.int64
        )
        pieces: list[npt.NDArray[np.uint8]] = []
        tables: list[list[tuple[int, int, int]]] = []
        offset = 0
        for texture in textures:
            table = []
            for planes in _mip_levels(texture.albedo):
                table.append((offset, planes.shape[2], planes.shape[1]))
                pieces.append(planes.reshape(-1))
                offset += planes.size
            tables.append(table)
        self.texels = np.concatenate(pieces) if pieces else np.zeros(1, np.uint8)
        self.n_levels = np.array([len(table) for table in tables] or [0], np.int64)
        self.levels = np.zeros(
            (max(len(tables), 1), int(self.n_levels.max(initial=1)), 3), np.int64
        )
        for index, table in enumerate(tables):
            self.levels[index, : len(table)] = table
        background = np.append(scene.background, scene.background @ _LUMINANCE)
        self.background = np.ascontiguousarray(background, np.float64)

    @property
    def textures(self) -> _kernels.Textures:
        """The textures in the form that the kernels take."""
        return _kernels.Textures(self.texture_of, self.n_levels, self.levels, self.texels)

    def _surfaces(self) -> tuple[Quad | Ball, ...]:
        return (*self.scene.quads, *self.scene.balls)

    def in_camera(self, cam_from_world: RigidTransform) -> SurfacesInCamera:
        """Return the surfaces in camera coordinates."""
        return SurfacesInCamera(self.scene, cam_from_world)


def _mip_levels(albedo: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    """Return planes (4, rows, cols) red, green, blue, luminance at full, half, quarter ... size."""
    colors = np.moveaxis(albedo, 2, 0).astype(np.float32)
    planes = np.empty((4, *albedo.shape[:2]), np.float32)
    planes[:3] = colors
    planes[3] = np.tensordot(_LUMINANCE.astype(np.float32), colors, 1)
    levels = [_round(planes)]
    while min(planes.shape[1:]) >= 4:
        planes = _halve(planes)
        levels.append(_round(planes))
    return levels


def _round(planes: Float32Array) -> npt.NDArray[np.uint8]:
    out = np.empty(planes.shape, np.uint8)
    _kernels.round_planes(planes, out)
    return out


def _halve(planes: Float32Array) -> Float32Array:
    """Return box averages at half the size, rounded down."""
    n_planes, n_rows, n_cols = planes.shape
    out = np.empty((n_planes, n_rows // 2, n_cols // 2), np.float32)
    if n_rows % 2 == 0 and n_cols % 2 == 0:
        _kernels.halve_both(planes, out)
        return out
    fewer_rows = np.empty((n_planes, n_rows // 2, n_cols), np.float32)
    _kernels.halve_rows(planes, np.linspace(0.0, n_rows, n_rows // 2 + 1), fewer_rows)
    _kernels.halve_columns(fewer_rows, np.linspace(0.0, n_cols, n_cols // 2 + 1), out)
    return out


class SurfacesInCamera:
    """Quads and balls in camera coordinates, and their order in depth."""

    def __init__(self, scene: Scene, cam_from_world: RigidTransform) -> None:
        rotation = cam_from_world.rotation
        self.world_from_cam = np.ascontiguousarray(rotation.T)
        n_quads, n_balls = len(scene.quads), len(scene.balls)
        self.quads = np.zeros((n_quads, _kernels.QUAD_COLUMNS))
        self.quad_slopes = np.empty((n_quads, 4))
        self.balls = np.zeros((n_balls, _kernels.BALL_COLUMNS))
        self.near = np.zeros(n_quads + n_balls)
        for index, quad in enumerate(scene.quads):
            origin = rotation @ quad.origin_world_mm + cam_from_world.translation_mm
            u, v = rotation @ quad.edge_u_world_mm, rotation @ quad.edge_v_world_mm
            normal = np.cross(u, v)
            duals = np.linalg.inv(np.column_stack([u, v, normal]))
            rows, cols, _ = quad.texture.albedo.shape
            density = np.sqrt(rows * cols / np.linalg.norm(normal))
            self.quads[index] = [
                *normal,
                normal @ origin,
                *duals[0],
                duals[0] @ origin,
                *duals[1],
                duals[1] @ origin,
                quad.shade,
                density,
            ]
            corners = np.array([origin, origin + u, origin + v, origin + u + v])
            self.near[index] = corners[:, 2].min()
            if self.near[index] > 1.0:
                slopes = corners[:, :2] / corners[:, 2:]
                low, high = slopes.min(axis=0), slopes.max(axis=0)
                self.quad_slopes[index] = [low[0], high[0], low[1], high[1]]
            else:
                self.quad_slopes[index] = [-np.inf, np.inf, -np.inf, np.inf]
        for index, ball in enumerate(scene.balls):
            center = rotation @ ball.center_world_mm + cam_from_world.translation_mm
            density = ball.texture.albedo.shape[1] / (2.0 * np.pi * ball.radius_mm)
            self.balls[index] = [*center, ball.radius_mm, ball.shade, density]
            self.near[n_quads + index] = center[2] - ball.radius_mm
        self.order = np.argsort(self.near, kind="stable")

    @property
    def arrays(self) -> _kernels.Surfaces:
        """The surfaces in the form that the kernels take."""
        return _kernels.Surfaces(self.near, self.quads, self.balls, self.world_from_cam)

    def cull(self, bundles: _kernels.Bundles) -> _kernels.Candidates:
        """List the surfaces that bundles of rays can meet, sorted by their smallest depth."""
        n = len(bundles.slopes)
        candidates = _kernels.Candidates(
            np.empty((n, max(len(self.order), 1)), np.int16), np.empty(n, np.int64)
        )
        _kernels.cull_surfaces(
            bundles, self.order, self.near, self.quad_slopes, self.balls, candidates
        )
        return candidates


class Renderer:
    """Renders frames of one camera.

    Parameters
    ----------
    optics : Optics
    rays_per_pixel : int
        Number of rays per pixel; a power of two gives the least noise.
    bayer : str or None
        'rggb', 'grbg', 'gbrg', 'bggr', or None for a mono sensor.
    """

    def __init__(self, optics: Optics, rays_per_pixel: int = 16, bayer: str | None = None) -> None:
        self.optics = optics
        blur_px = optics.imperfections.blur_px
        self.samples = make_samples(rays_per_pixel, seed=0, blur_px=blur_px)
        off = self.samples[..., :2] - 0.5
        self._extent_px = float(np.hypot(off[..., 0], off[..., 1]).max())
        self.channels = _channels_of(bayer)
        camera = optics.camera
        if not np.isfinite(optics.micro_lenses.image_centers_mm).all():
            raise InputError(
                "the distortion folds back inside the image: some micro images have no place. "
                "Use smaller coefficients"
            )
        main, micro = optics.apertures.disc_radii_mm(optics.focal_planes_v)
        # This is how far the light of a lens reaches from its micro-image center, with a margin of
        # 10 % because distortion may stretch it.
        self._reach_px = 1.1 * (main + float(np.max(micro))) / camera.pixel_size_mm + 1.0
        self._reach_px += _BLUR_REACH * blur_px

    @cached_property
    def _displacement(self) -> Float32Array:
        """Undistorted minus recorded position of pixel corners, (height + 1, width + 1, 2)."""
        camera = self.optics.camera
        width, height = camera.image_size
        out = np.empty((height + 1, width + 1, 2), np.float32)
        x = np.arange(width + 1) - 0.5
        for row in range(height + 1):
            corners = np.column_stack([x, np.full(width + 1, row - 0.5)])
            out[row] = camera.distortion.undistort(corners, camera.principal_point_px) - corners
        if not np.isfinite(out).all():
            raise InputError(
                "the distortion folds back inside the image: some pixels see nothing. "
                "Use smaller coefficients"
            )
        return out

    @property
    def _nearness(self) -> float:
        """Reciprocal of the distance to which the object-space distortion refers, in 1 / mm."""
        distance = self.optics.imperfections.object_distortion_distance_mm
        return 0.0 if distance is None else 1.0 / distance

    @cached_property
    def _lenses(self) -> FloatArray:
        """The table of micro lenses that the kernel takes, see `_kernels.MicroLenses`."""
        optics, lenses = self.optics, self.optics.micro_lenses
        p = optics.camera.parameters
        total = p.lens_to_array_mm + p.array_to_sensor_mm
        to_sensor = np.where(
            lenses.distances_mm == p.lens_to_array_mm,
            p.array_to_sensor_mm,
            total - lenses.distances_mm,
        )
        from_stop = lenses.distances_mm - optics.imperfections.stop_mm
        # All lenses of a type have the same focal length. Where a tilted array is nearer to the
        # sensor, another virtual depth is in focus: 1 / v = 1 - distance to sensor / focal length.
        planes = optics.focal_planes_v[optics.camera.grid.lens_types]
        planes = planes / (1.0 + (planes - 1.0) * (1.0 - to_sensor / p.array_to_sensor_mm))
        spread = 1.0 + from_stop / to_sensor / planes
        return np.column_stack(
            [
                lenses.image_centers_mm,
                lenses.centers_mm,
                from_stop,
                to_sensor,
                spread,
                optics.main_focal_lengths_mm,
            ]
        )

    @cached_property
    def _bundles(self) -> _kernels.Bundles:
        """The rays of each micro lens in object space."""
        optics, lenses = self.optics, self.optics.micro_lenses
        errors, focal_lengths = optics.imperfections, optics.main_focal_lengths_mm
        stop, main, micro = errors.stop_mm, optics.main_radius_mm, optics.micro_radius_mm
        from_stop = lenses.distances_mm - stop
        inner = lenses.centers_mm / from_stop[:, None]
        through_stop = 1.0 - stop / focal_lengths
        slopes = inner * through_stop[:, None]
        spread = float(
            np.max(
                np.abs(through_stop) * micro / from_stop
                + main * np.abs(1.0 / focal_lengths - through_stop / from_stop)
            )
        )
        steepest = float(np.max(np.hypot(inner[:, 0], inner[:, 1]) + (main + micro) / from_stop))
        reach_mm = main + abs(stop) * steepest
        if errors.distorts_in_object_space:
            a, b = errors.object_distortion_a, errors.object_distortion_b
            square = np.sum(slopes * slopes, axis=1, keepdims=True)
            slopes = slopes * (1.0 - a * square + b * square * square)
            # Enlarge the bounds by the largest relative change of a slope, and by the contribution
            # of a finite distance.
            most = 2.0 * float(square.max())
            spread *= 1.0 + 3.0 * abs(a) * most + 5.0 * abs(b) * most * most
            spread += reach_mm * self._nearness
        return _kernels.Bundles(slopes, spread, reach_mm)

    def render_white(
        self, seed: int = 0, window: tuple[int, int, int, int] | None = None
    ) -> Float32Array:
        """Return the light on the sensor in front of an evenly white surface, (height, width).

        `window` is the part of the image to render, as in `render_raw`.
        """
        empty = Scene("white", (), (), (), np.ones(3), np.zeros(3), 1.0, 1.0)
        return self.render_raw(PackedScene(empty), RigidTransform.identity(), seed, window)

    def render_raw(
        self,
        scene: PackedScene,
        cam_from_world: RigidTransform,
        seed: int = 0,
        window: tuple[int, int, int, int] | None = None,
    ) -> Float32Array:
        """Return the light on the sensor.

        Parameters
        ----------
        scene : PackedScene
        cam_from_world : RigidTransform
        seed : int
            Random seed of the ray sampling; frames of a sequence use different ones.
        window : (x, y, width, height) or None
            The part of the image to render.

        Returns
        -------
        (height, width) float32
            Light on each pixel; 1 if the pixel sees white through a whole micro aperture.
        """
        camera, optics = self.optics.camera, self.optics
        width, height = camera.image_size
        x, y, n_x, n_y = window or (0, 0, width, height)
        if not (
            x >= 0 and y >= 0 and n_x > 0 and n_y > 0 and x + n_x <= width and y + n_y <= height
        ):
            raise InputError(f"window {window} is not inside the image of {width} x {height} px")
        surfaces = scene.in_camera(cam_from_world)
        footprint = _PREFILTER_PX / camera.array.focal_px
        errors = optics.imperfections
        out = np.empty((n_y, n_x), np.float32)
        _kernels.render_raw(
            _kernels.Sensor(
                first_row=y,
                first_col=x,
                pixel_mm=camera.pixel_size_mm,
                principal=camera.principal_point_px,
                displacement=self._displacement,
                channels=self.channels,
            ),
            _kernels.Sampling(self.samples, self._extent_px, np.uint64(seed)),
            _kernels.MainLens(
                stop=float(errors.stop_mm),
                radius=optics.main_radius_mm,
                distortion=_kernels.ObjectDistortion(
                    errors.object_distortion_a, errors.object_distortion_b, self._nearness
                ),
                distorts=errors.distorts_in_object_space,
            ),
            _kernels.MicroLenses(
                table=camera.grid.index.table,
                lenses=self._lenses,
                radius=optics.micro_radius_mm,
                reach_px=self._reach_px,
                cos4=errors.cos4,
            ),
            surfaces.cull(self._bundles),
            _kernels.World(surfaces.arrays, scene.textures, scene.background),
            _kernels.Footprint(camera.array.alpha * footprint, camera.array.beta_mm * footprint),
            out,
        )
        return out

    def render_pinhole(
        self, scene: PackedScene, cam_from_world: RigidTransform, scale: float = 0.5
    ) -> PinholeView:
        """Return the view of a pinhole at the main lens' center, with no distortion.

        It has the focal length F and the principal point c of the camera, both scaled, so its
        pixels are those of the totally focused image.

        Parameters
        ----------
        scale : float
            Size relative to the raw image.
        """
        camera = self.optics.camera
        width, height = (max(1, round(size * scale)) for size in camera.image_size)
        focal = camera.array.focal_px * scale
        principal = (camera.principal_point_px + 0.5) * scale - 0.5
        surfaces = scene.in_camera(cam_from_world)
        # Compute the centers of tiles, and half the diagonal of a tile, as slopes.
        tile_rows = np.arange(0, height, _TILE_PX) + (_TILE_PX - 1) / 2
        tile_cols = np.arange(0, width, _TILE_PX) + (_TILE_PX - 1) / 2
        tile_y, tile_x = np.meshgrid(tile_rows, tile_cols, indexing="ij")
        tiles = (np.column_stack([tile_x.ravel(), tile_y.ravel()]) - principal) / focal
        bundles = _kernels.Bundles(tiles, 0.75 * _TILE_PX / focal, 0.0)
        color = np.empty((height, width, 3), np.float32)
        depth = np.empty((height, width), np.float32)
        _kernels.render_pinhole(
            _kernels.PinholeView(focal, principal, _TILE_PX),
            _kernels.Sampling(self.samples, self._extent_px, np.uint64(0)),
            surfaces.cull(bundles),
            _kernels.World(surfaces.arrays, scene.textures, scene.background),
            _kernels.Footprint(_PREFILTER_PX / focal, 0.0),
            color,
            depth,
        )
        return PinholeView(color, depth, focal, principal)
