"""Micro images of a known texture, at known places: exact but for what is asked for."""

from dataclasses import dataclass, replace

import numpy as np

from lifcal.camera import Lattice, MicroLensGrid
from lifcal.measure import MeasureOptions, MicroImages, Patches
from lifcal.virtual.moves import make_moves
from lifcal.virtual.optics import LensOptics

SIZE = (500, 400)
RADIUS_PX = 11.0
OPTIONS = MeasureOptions(most_misfit=1e6, blur_error=0.0)
"""Exact images differ from their texture by next to nothing, but some by much more than others."""


def make_grid():
    """Micro images large enough for a whole window anywhere near their middle."""
    lattice = Lattice.regular("hexagonal-rows", 26.0, (249.3, 198.4), rotation_rad=0.013)
    return MicroLensGrid.from_lattice(lattice, SIZE)


def make_optics(grid):
    """One lens type without any shift: what a pinhole sees is what is recorded."""
    flat = np.zeros((1, 200), np.float32)
    return LensOptics(
        np.zeros(len(grid), np.int64),
        RADIUS_PX,
        flat + np.float32(1.0),
        flat,
        np.array([np.nan]),
        6.0,
        flat,
        make_moves(None, flat.shape, 1.0 / 12.0),
    )


def make_texture(rng):
    """Return a function of (s, t): soft spots, so that coefficients 0.75 px apart are enough."""
    centers = rng.uniform(-7.0, 7.0, (40, 2))
    widths = rng.uniform(1.6, 2.6, 40)
    heights = rng.uniform(-0.25, 0.25, 40)

    def texture(st):
        square = np.sum((st[..., None, :] - centers) ** 2, axis=-1)
        return 0.5 + np.exp(-0.5 * square / widths**2) @ heights

    return texture


@dataclass(frozen=True, eq=False)
class Case:
    """What goes into `measure`, and the truth: places in px, slopes of the tracks."""

    images: MicroImages
    patches: Patches
    grid: MicroLensGrid
    optics: LensOptics
    true_px: np.ndarray
    true_slopes: np.ndarray
    textures: list
    gains: np.ndarray
    offsets: np.ndarray

    def affine(self):
        """A of each image, at the true slopes."""
        slopes = self.true_slopes[self.images.tracks]
        return self.images.jacobians + self.images.tilts[:, :, None] * slopes[:, None, :]

    def with_values(self, values):
        return replace(self, patches=Patches(self.patches.corners_px, values.astype(np.float32)))

    def errors(self, places_px):
        """Errors of places, without the common displacement of each track along its surface."""
        off = places_px - self.true_px
        affine = self.affine()
        out = off.copy()
        for track in np.unique(self.images.tracks):
            here = (self.images.tracks == track) & np.isfinite(off).all(axis=1)
            rows, sides = affine[here].reshape(-1, 2), off[here].ravel()
            gauge = np.linalg.lstsq(rows, sides, rcond=None)[0]
            out[here] -= affine[here] @ gauge
        return out


def make_case(rng, n_tracks=6, n_images=24, *, start_px=0.3, slope=0.0):
    """Return micro images that were predicted `start_px` off, of surfaces with a slope."""
    grid = make_grid()
    n = n_tracks * n_images
    tracks = np.repeat(np.arange(n_tracks), n_images)
    inside = (np.abs(grid.centers_raw_px - np.array(SIZE) / 2) < np.array(SIZE) / 2 - 20).all(1)
    lenses = rng.choice(np.flatnonzero(inside), n)
    true = grid.centers_raw_px[lenses] + rng.uniform(-2.0, 2.0, (n, 2))
    angles, scales = rng.uniform(-0.6, 0.6, n), rng.uniform(0.85, 1.2, n)
    cos, sin = scales * np.cos(angles), scales * np.sin(angles)
    jacobians = np.stack([cos, -sin, sin, cos], axis=1).reshape(n, 2, 2)
    jacobians += rng.normal(scale=0.03, size=jacobians.shape)
    tilts = rng.normal(scale=3.0, size=(n, 2))
    slopes = slope * rng.choice([-1.0, 1.0], (n_tracks, 2))
    images = MicroImages(
        tracks,
        rng.integers(0, 8, n),
        lenses,
        true + rng.uniform(-start_px, start_px, (n, 2)),
        jacobians,
        tilts,
        np.full(n, 0.3),
        np.linalg.norm(true - grid.centers_raw_px[lenses], axis=1),
    )
    side = OPTIONS.patch_side
    corners = np.rint(images.places_px).astype(np.int64) - side // 2
    empty = Patches(corners, np.zeros((n, side, side), np.float32))
    textures = [make_texture(rng) for _ in range(n_tracks)]
    gains, offsets = rng.uniform(0.8, 1.25, n), rng.uniform(-0.05, 0.05, n)
    case = Case(images, empty, grid, make_optics(grid), true, slopes, textures, gains, offsets)
    return case.with_values(render(case))


def render(case, textures=None):
    """Return the pixels of all patches, each at its own place of the texture.

    A pixel is the mean over its square: of four places, which is exact for cubics.
    """
    side = case.patches.values.shape[1]
    steps = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1)
    within = np.array([[i, j] for i in (-1.0, 1.0) for j in (-1.0, 1.0)]) / np.sqrt(12.0)
    inverses = np.linalg.inv(case.affine())
    out = np.empty(case.patches.values.shape)
    for k, track in enumerate(case.images.tracks):
        away = case.patches.corners_px[k] + steps - case.true_px[k]
        texture = (textures or case.textures)[track]
        shown = np.mean([texture((away + part) @ inverses[k].T) for part in within], axis=0)
        out[k] = case.gains[k] * shown + case.offsets[k]
    return out
