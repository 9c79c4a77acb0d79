"""What is known of any camera before an image is seen, and of its micro lenses."""

from __future__ import annotations

from lifcal.bundle import FocusTerm, Prior
from lifcal.camera import MicroLensGrid

_CENTER_SIGMA = 0.02
"""Standard deviation of c about the middle of the image, as a part of its width, before any image
is seen. Lenses are centred mechanically: in the published calibrations of five cameras and lenses
(Raytrix R5, R12, R25) each coordinate is 0.1 to 1.5 % of the width off the middle."""
_TANGENTIAL_SIGMA = 0.002
"""Standard deviation of the displacement by a tangential term at the left and right edge of the
image, as a part of half its width. Assembled lenses have some tenths of a per mille."""
_LINEAR_FOCUS = (0.1, 0.1)
"""Strength of the linear focus term and its standard deviation, where no overlap discs are known.
The term is then estimated, and the prior keeps it small."""


def camera_priors(image_size: tuple[int, int], distortion: str) -> dict[str, Prior]:
    """Return what is known of a camera from how cameras are made, before any image is seen.

    The principal point is at the middle of the image within 2 % of its width, and a tangential
    term displaces the left and right edges by 0.2 % of half the width (one sigma each).

    Parameters
    ----------
    image_size : (int, int)
        Width and height, px.
    distortion : str
        As in `AdjustOptions`; only Brown's model has tangential terms.
    """
    width, height = image_size
    priors = {
        "c_x": Prior(0.5 * (width - 1), _CENTER_SIGMA * width),
        "c_y": Prior(0.5 * (height - 1), _CENTER_SIGMA * width),
    }
    if distortion in ("auto", "brown"):
        # A term p displaces a point at the radius r by up to 3 p r^2.
        sigma = _TANGENTIAL_SIGMA / (3.0 * 0.5 * width)
        priors |= {"p0": Prior(0.0, sigma), "p1": Prior(0.0, sigma)}
    return priors


def choose_focus_term(grid: MicroLensGrid) -> tuple[FocusTerm | None, float | Prior]:
    """Return the focus term that a grid can give, and its strength."""
    if grid.focal_planes is None:
        return None, 0.0
    if grid.discs is None:
        return FocusTerm.from_grid(grid, "linear"), Prior(*_LINEAR_FOCUS)
    return FocusTerm.from_grid(grid, "devignetted"), 1.0
