"""Recognition of motions and scenes that do not determine a camera, before any pose is known.

The matches between pairs of views reveal three cases:

- If a camera turns on the spot, a homography maps all image points of one view to those of another,
  whatever their depths are.
- Two views of a flat scene are related by a homography too. In addition, virtual depth is a linear
  function of the position in the image, because 1 / z is.
- If a camera moves along its axis without turning, all matches move on lines through one point (the
  focus of expansion) near the middle of the image.

None of these tests needs the focal length, so they work even if nothing else can be estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.diagnostics import Finding, Severity
from lifcal.sfm.rigidity import PairMatches

_FEWEST_MATCHES, _FEWEST_PAIRS = 30, 3
"""Smallest number of matches with a known virtual depth for which a pair is tested, and smallest
number of such pairs."""
_MOVES_PX, _TURNS_PX = 8.0, 40.0
"""Smallest median motion of a pair, in raw px, for which its lines of motion can be tested, and for
which its parallax can be tested. The noise of image points is about half a pixel."""
_MOST_PAIRS = 60
"""Largest number of pairs that are tested; they are evenly spaced in the list. This is enough,
because each of the three cases concerns all pairs of a recording."""
_MOST = 0.8
"""Fraction of the pairs that must show a case. The matches of a few pairs are always wrong."""
_NO_PARALLAX, _NO_PARALLAX_PX = 0.015, 1.5
"""Median residual of the matches for the best homography, up to which there is no parallax: as a
fraction of the motion, and in px (about twice the noise of image points). A camera that turned has
a residual of 0.002 (0.4 px), one that moved sideways over a scene with depth 0.1 and more."""
_RADIAL = 0.08
"""Median distance of matches from lines through the focus of expansion, as a fraction of the
motion, up to which all matches move on such lines. It is 0.01 to 0.04 for a camera that moved along
its axis, and 0.3 for other motions."""
_MIDDLE = 0.2
"""Distance of the focus of expansion from the middle of the image, in image widths, up to which the
camera moved along its axis. If the distance is larger, the camera moved sideways too."""
_FLAT = 2.0
"""Residual of virtual depths about a linear function of the image position, in sigmas of their
noise, up to which a scene is flat. Noise alone gives 1; a desk has 5."""
_ROUNDS = 8
"""Number of rounds of a reweighted fit, after which the weights hardly change."""


class _Judged(NamedTuple):
    """Results of the tests for the matches of one pair of views.

    Parameters
    ----------
    moved_px : float
        Median motion of the matches.
    parallax_px : float
        Median residual of the matches for the best homography.
    off_lines_px : float
        Median distance of the matches from lines through the focus of expansion.
    place : (2,) float64
        Focus of expansion, relative to the middle of the image, in image widths.
    relief : float
        Residual of virtual depths about a linear function of the image position, in sigmas of their
        noise.
    """

    moved_px: float
    parallax_px: float
    off_lines_px: float
    place: FloatArray
    relief: float

    @property
    def has_parallax(self) -> bool:
        """Whether no homography explains the matches."""
        return self.parallax_px > max(_NO_PARALLAX * self.moved_px, _NO_PARALLAX_PX)

    @property
    def is_radial(self) -> bool:
        """Whether all matches move on lines through one point near the middle of the image."""
        return self.off_lines_px < _RADIAL * self.moved_px and bool(
            np.linalg.norm(self.place) < _MIDDLE
        )


def describe_motion(pairs: Sequence[PairMatches], image_size: tuple[int, int]) -> list[Finding]:
    """Return a finding if the camera turned on the spot, moved along its axis, or saw a flat scene.

    Parameters
    ----------
    pairs : sequence of PairMatches
        Matches between views, most of which are correct.
    image_size : (int, int)
        Width and height of the raw image.
    """
    judged = []
    for pair in _choose(pairs):
        known = pair.known
        if known.sum() >= _FEWEST_MATCHES and np.median(pair.moved_px[known]) > _MOVES_PX:
            judged.append(_judge(pair.points_first[known], pair.points_second[known], image_size))
    if len(judged) < _FEWEST_PAIRS:
        return []
    if np.mean([pair.is_radial for pair in judged]) > _MOST:
        return [
            Finding.of(
                "moved-along-axis",
                "the camera only moved forward or back along its optical axis, which does not tell "
                "the focal length from the distance: move it sideways too, and turn it",
                pairs=len(judged),
            )
        ]
    judged = [pair for pair in judged if pair.moved_px > _TURNS_PX]
    if len(judged) < _FEWEST_PAIRS:
        return []
    if np.mean([not pair.has_parallax for pair in judged]) <= _MOST:
        return []
    if np.median([pair.relief for pair in judged]) < _FLAT:
        return [
            Finding.of(
                "flat-scene",
                "the scene is flat: put things in front of it, or look at it from more directions "
                "and distances",
                pairs=len(judged),
            )
        ]
    return [
        Finding.of(
            "turned-on-the-spot",
            "the camera only turned on the spot: near and far things do not shift against each "
            "other. Move it sideways, by a tenth of the distance or more",
            severity=Severity.POOR,
            pairs=len(judged),
        )
    ]


def _choose(pairs: Sequence[PairMatches]) -> list[PairMatches]:
    if len(pairs) <= _MOST_PAIRS:
        return list(pairs)
    return [pairs[i] for i in np.linspace(0, len(pairs) - 1, _MOST_PAIRS).astype(int).tolist()]


def _judge(first: FloatArray, second: FloatArray, image_size: tuple[int, int]) -> _Judged:
    """Test the matches of two views, (n, 3) each: position in px and virtual depth."""
    width = float(image_size[0])
    middle = 0.5 * (np.array(image_size) - 1.0)
    before, after = ((points[:, :2] - middle) / width for points in (first, second))
    moved = float(np.median(np.linalg.norm(after - before, axis=1)))
    place, off_lines = _fit_place(before, after)
    return _Judged(
        moved * width,
        _fit_homography(before, after) * width,
        off_lines * width,
        place,
        _measure_relief(before, first[:, 2], second[:, 2]),
    )


def _fit(design: FloatArray, values: FloatArray, n_rows: int = 1) -> tuple[FloatArray, FloatArray]:
    """Fit `design @ x = values` robustly; return x and the length of each match's residual.

    Parameters
    ----------
    design : (n_rows * n, k) float64
        The first n rows hold the first equation of each match, the next n rows the second one, and
        so on.
    values : (n_rows * n,) float64
    n_rows : int
        Number of equations for each match.
    """
    weights = np.ones(len(values) // n_rows)
    for _ in range(_ROUNDS):
        roots = np.tile(np.sqrt(weights), n_rows)
        found = np.linalg.lstsq(design * roots[:, None], values * roots, rcond=None)[0]
        off = (design @ found - values).reshape(n_rows, -1)
        distances = np.sqrt(np.sum(off**2, axis=0))
        spread = 1.4826 * float(np.median(distances)) + 1e-12
        weights = 1.0 / (1.0 + (distances / (2.0 * spread)) ** 2) ** 2
    return found, distances


def _fit_homography(before: FloatArray, after: FloatArray) -> float:
    """Fit a homography to the matches and return the median length of their residuals."""
    x, y = before.T
    one, zero = np.ones_like(x), np.zeros_like(x)
    design = np.concatenate(
        [
            np.column_stack([x, y, one, zero, zero, zero, -after[:, 0] * x, -after[:, 0] * y]),
            np.column_stack([zero, zero, zero, x, y, one, -after[:, 1] * x, -after[:, 1] * y]),
        ]
    )
    found, _ = _fit(design, after.T.ravel(), 2)
    moved = np.column_stack([before, one]) @ np.append(found, 1.0).reshape(3, 3).T
    depth = np.where(np.abs(moved[:, 2:]) > 1e-6, moved[:, 2:], np.inf)
    return float(np.median(np.linalg.norm(moved[:, :2] / depth - after, axis=1)))


def _fit_place(before: FloatArray, after: FloatArray) -> tuple[FloatArray, float]:
    """Return the focus of expansion and the median distance of matches from lines through it.

    The focus of expansion is the point nearest to all lines on which matches move. The distance is
    that of the second point of a match from the line through its first point and the focus of
    expansion.
    """
    moves = after - before
    across = np.column_stack([-moves[:, 1], moves[:, 0]])
    place, _ = _fit(across, np.sum(across * before, axis=1))
    arms = before - place
    lengths = np.maximum(np.linalg.norm(arms, axis=1), 1e-9)
    off = np.abs(arms[:, 0] * moves[:, 1] - arms[:, 1] * moves[:, 0]) / lengths
    return place, float(np.median(off))


def _measure_relief(places: FloatArray, first_u: FloatArray, second_u: FloatArray) -> float:
    """Return the residual of virtual depths about a linear function of the position, in sigmas.

    The noise of virtual depth is estimated from two views of the same points: the virtual depth in
    the second view is predicted from position and virtual depth in the first one, by a function
    that is linear in virtual depth and whose coefficients are linear in the position.
    """
    one = np.ones(len(places))
    linear = np.column_stack([one, places])
    by_first = np.column_stack([linear, first_u, first_u * places[:, 0], first_u * places[:, 1]])
    noise = float(np.median(_fit(by_first, second_u)[1])) / math.sqrt(2.0)
    spread = float(np.median(_fit(linear, first_u)[1]))
    return spread / max(noise, 1e-12)
