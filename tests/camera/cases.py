"""Cameras and points for the camera tests, drawn at random."""

import numpy as np

from lifcal.camera import (
    ArrayTilt,
    BrownDistortion,
    DivisionDistortion,
    Lattice,
    MicroLensGrid,
    NoDistortion,
    PhysicalParameters,
    PlenopticCamera,
)
from tests.reference import paper_model

# f_L, b_L0, B, depth range: the paper's three, an R12, and Keplerian ones.
DESIGNS = {
    "r5-12.5mm": (13.181, 12.209, 0.399, (300.0, 3000.0)),
    "r5-16mm": (16.748, 15.893, 0.376, (300.0, 4000.0)),
    "r5-35mm": (35.368, 34.471, 0.370, (900.0, 8000.0)),
    "r12-50mm": (49.885, 56.860, 0.337, (240.0, 370.0)),
    "keplerian-16mm": (16.0, 18.2, 0.42, (300.0, 2000.0)),
    "keplerian-50mm": (50.0, 62.0, 0.8, (400.0, 3000.0)),
}


KINDS = ["none", "brown", "division", "tilted none", "tilted brown"]
"""Models of distortion; 'tilted': behind a tilted array."""


def make_distortion(kind, rng):
    if kind == "none":
        return NoDistortion()
    if kind == "brown":
        return BrownDistortion(
            k0=rng.uniform(-8e-9, 8e-9),
            k1=rng.uniform(-2e-15, 2e-15),
            k2=rng.uniform(-3e-22, 3e-22),
            p0=rng.uniform(-3e-7, 3e-7),
            p1=rng.uniform(-3e-7, 3e-7),
        )
    return DivisionDistortion(strength=rng.uniform(-1e-8, 1e-8))


def make_camera(design, kind, rng):
    f_L, b_L0, B, _ = DESIGNS[design]
    lattice = Lattice.regular(
        rng.choice(["hexagonal-rows", "hexagonal-columns", "square"]),
        rng.uniform(14.0, 36.0),
        rng.uniform(900.0, 1100.0, 2),
        rotation_rad=rng.uniform(-0.5, 0.5),
        n_types=3,
    )
    grid = MicroLensGrid.from_lattice(lattice, (2048, 2000))
    parameters = PhysicalParameters(
        f_L * rng.uniform(0.99, 1.01),
        b_L0 * rng.uniform(0.995, 1.005),
        B * rng.uniform(0.9, 1.1),
        *rng.uniform(980.0, 1060.0, 2),
    )
    distortion = make_distortion(kind.removeprefix("tilted "), rng)
    # 2e-5 per px is 0.08 degrees for B = 0.4 mm, more than a real array has
    tilt = ArrayTilt(*rng.uniform(-2e-5, 2e-5, 2)) if kind.startswith("tilted ") else None
    return PlenopticCamera(parameters, 0.0055, grid, distortion, tilt=tilt)


def make_pairs(camera, design, rng, n):
    """Return points in view and lenses anywhere."""
    depth = 1.0 / rng.uniform(*(1.0 / np.array(DESIGNS[design][3]))[::-1], n)
    pixels = rng.uniform(0.0, 2000.0, (n, 2))
    xy = (pixels - camera.principal_point_px) * (depth / camera.array.focal_px)[:, None]
    return np.column_stack([xy, depth]), rng.integers(0, len(camera.grid), n)


def twin_camera(camera):
    return paper_model.Camera(*camera.parameters.as_vector(), camera.pixel_size_mm)


def twin_distortion(distortion):
    kinds = {
        "none": paper_model.NoDistortion,
        "brown": paper_model.Brown,
        "division": paper_model.Division,
    }
    return kinds[distortion.name](*distortion.parameters)


def twin_tilt(camera):
    return None if camera.tilt is None else camera.tilt.as_vector()
