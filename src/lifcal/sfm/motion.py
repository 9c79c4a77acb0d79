"""Motions and scenes that do not determine a camera, told from matches before any pose is known.

Three cases are told by what the matches of pairs of views have in common:

- If a camera turns on the spot, a homography takes all places of one view to those of another,
  whatever their depths are.
- A flat scene is related by a homography too. There, virtual depth is a linear function of the
  place in the image, because it is one of 1 / z.
- If a camera moves along its axis without turning, all matches move on lines through one place near
  the middle of the image.

None of them needs the focal length, so they are told also where nothing else can be estimated.
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
"""Matches with a known virtual depth that a pair needs to be judged, and pairs that are needed."""
_MOVES_PX, _TURNS_PX = 8.0, 40.0
"""Median motions of a pair, in raw px, from which on its lines of motion and its parallax can be
judged: the noise of places is about half a pixel."""
_MOST_PAIRS = 60
"""Pairs that are judged, evenly chosen: all of them follow one rule, or it is not there."""
_MOST = 0.8
"""Share of the pairs that must follow a rule. Matches of some pairs are always wrong."""
_NO_PARALLAX, _NO_PARALLAX_PX = 0.015, 1.5
"""Median distance of matches from where the best homography puts them up to which there is no
parallax: as a part of the motion, and in px (twice the noise of places). A camera that turned has
0.002 (0.4 px), one that moved sideways over a scene with depth 0.1 and more."""
_RADIAL = 0.08
"""Median distance of matches from lines through one place, as a part of the motion, up to which all
move on such lines. A camera that moved along its axis has 0.01 to 0.04, other motions 0.3."""
_MIDDLE = 0.2
"""Distance of that place from the middle of the image, in image widths, up to which the camera
moved along its axis: beyond it, it moved sideways too."""
_FLAT = 2.0
"""Spread of virtual depths about a linear function of the place, in sigmas of their noise, up to
which a scene is flat. Noise alone makes 1; a desk has 5."""
_ROUNDS = 8
"""Rounds of a reweighted fit, after which its weights hardly change."""


class _Judged(NamedTuple):
    """What the matches of a pair of views say.

    Parameters
    ----------
    moved_px : float
        Median motion.
    parallax_px : float
        Median distance from where a homography puts the matches.
    off_lines_px : float
        Median distance from lines through one place.
    place : (2,) float64
        That place from the middle of the image, in image widths.
    relief : float
        Spread of virtual depths about a linear function of the place, in sigmas of their noise.
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
        """Whether all matches move on lines through the middle of the image."""
        return self.off_lines_px < _RADIAL * self.moved_px and bool(
            np.linalg.norm(self.place) < _MIDDLE
        )


def describe_motion(pairs: Sequence[PairMatches], image_size: tuple[int, int]) -> list[Finding]:
    """Return a finding if the camera turned on the spot, moved along its axis, or saw a flat scene.

    Parameters
    ----------
    pairs : sequence of PairMatches
        Matches between views, of which most are right.
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
    """Judge the matches (n, 3) of two views: place in px, and virtual depth."""
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
    """Fit `design @ x = values` robustly; return x and the distance of each match.

    Parameters
    ----------
    design : (n_rows * n, k) float64
        The rows of a match are n apart.
    values : (n_rows * n,) float64
    n_rows : int
        Equations of a match.
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
    """Return the median distance of matches from where the best homography puts them."""
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
    """Return the place nearest to the lines on which matches move, and how far these are off it.

    The distance is that of a match from the line through its first place and the common one.
    """
    moves = after - before
    across = np.column_stack([-moves[:, 1], moves[:, 0]])
    place, _ = _fit(across, np.sum(across * before, axis=1))
    arms = before - place
    lengths = np.maximum(np.linalg.norm(arms, axis=1), 1e-9)
    off = np.abs(arms[:, 0] * moves[:, 1] - arms[:, 1] * moves[:, 0]) / lengths
    return place, float(np.median(off))


def _measure_relief(places: FloatArray, first_u: FloatArray, second_u: FloatArray) -> float:
    """Return the spread of virtual depths about a linear function of the place, in their sigmas.

    The noise is measured by what two views say about the same points. Between them, virtual depth
    changes by a factor that is linear in the place.
    """
    one = np.ones(len(places))
    linear = np.column_stack([one, places])
    by_first = np.column_stack([linear, first_u, first_u * places[:, 0], first_u * places[:, 1]])
    noise = float(np.median(_fit(by_first, second_u)[1])) / math.sqrt(2.0)
    spread = float(np.median(_fit(linear, first_u)[1]))
    return spread / max(noise, 1e-12)
