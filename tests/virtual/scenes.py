"""Raws whose virtual depth is known exactly: pinhole micro lenses looking at a smooth texture."""

import numpy as np

from lifcal.camera import Lattice, MicroLensGrid

SIZE = (300, 260)


def make_grid(layout="hexagonal-rows", pitch_px=14.3, n_types=1, focal_planes=None):
    lattice = Lattice.regular(layout, pitch_px, (149.3, 128.4), rotation_rad=0.013, n_types=n_types)
    return MicroLensGrid.from_lattice(lattice, SIZE, focal_planes=focal_planes)


def make_texture(rng, n_waves=60, shortest_px=9.0):
    """Return a function of virtual points: a sum of waves, all longer than `shortest_px`."""
    frequency = rng.uniform(1.0 / 60.0, 1.0 / shortest_px, n_waves)
    angle = rng.uniform(0.0, 2.0 * np.pi, n_waves)
    phase = rng.uniform(0.0, 2.0 * np.pi, n_waves)
    waves = 2.0 * np.pi * frequency[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def texture(points):
        flat = points.reshape(-1, 2)
        out = np.zeros(len(flat))
        for wave, start in zip(waves, phase, strict=True):
            out += np.cos(flat @ wave + start)
        return 0.5 + 0.06 * out.reshape(points.shape[:-1])

    return texture


def make_raw(grid, rho_at, texture):
    """Return the raw of a surface: `rho_at` gives the inverse virtual depth at virtual points."""
    width, height = grid.image_size
    rows, cols = np.mgrid[:height, :width]
    pixels = np.stack([cols, rows], axis=-1).astype(np.float64)
    labels = grid.label_image()
    centers = grid.centers_raw_px[np.maximum(labels, 0)]
    points = centers.copy()
    for _ in range(30):
        points = centers + (pixels - centers) / rho_at(points)[..., None]
    return np.where(labels >= 0, texture(points), 0.0).astype(np.float32)
