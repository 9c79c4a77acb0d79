"""Motions and scenes that do not determine a camera are told from matches."""

import numpy as np
import pytest

from lifcal.diagnostics import Finding, explain_failure
from lifcal.errors import EstimationError
from lifcal.sfm.motion import describe_motion
from tests.sfm.rigid_scenes import MOTIONS, WIDTH, make_pairs

SIZE = (WIDTH, WIDTH)
FIELDS = (0.6, 1.4, 5.0)
"""F in image widths: from a wide to a narrow field of view."""


def codes(pairs):
    return [finding.code for finding in describe_motion(pairs, SIZE)]


@pytest.mark.parametrize("focal", FIELDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("motion", "relief", "code"),
    [
        ("rotation", 0.35, "turned-on-the-spot"),
        ("forward", 0.35, "moved-along-axis"),
        ("handheld", 0.0, "flat-scene"),
        ("orbit", 0.0, "flat-scene"),
    ],
)
def test_each_has_its_own_finding(motion, relief, code, focal, seed):
    rng = np.random.default_rng(seed)
    pairs, _, _ = make_pairs(motion, focal, rng, relief=relief)
    assert codes(pairs) == [code]


@pytest.mark.parametrize("focal", FIELDS)
@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("relief", [0.1, 0.35])
def test_other_motions_have_none(motion, focal, relief, rng):
    pairs, _, _ = make_pairs(motion, focal, rng, relief=relief)
    assert codes(pairs) == []


def test_few_or_short_pairs_say_nothing(rng):
    pairs, _, _ = make_pairs("rotation", 1.4, rng)
    assert codes(pairs[:2]) == []
    resting = [type(pair)(*pair.__dict__.values()) for pair in pairs]
    for pair in resting:
        object.__setattr__(pair, "points_second", pair.points_first + 0.5)
    assert codes(resting) == []


def test_a_failure_is_explained_by_motion():
    error = EstimationError("F is known to 43 % only", stage="bundle", evidence={"F_px": 9.0})
    turned = Finding.of("turned-on-the-spot", "the camera only turned. Move it")
    flat = Finding.of("flat-scene", "the scene is flat: look at it from more directions")
    found = explain_failure(error, [flat, turned, Finding.of("no-scale", "none")])
    assert str(found) == "the camera only turned. Move it. (What failed: F is known to 43 % only)"
    assert found.stage == "bundle"
    assert found.evidence == {"F_px": 9.0, "explained_by": ["turned-on-the-spot"]}
    assert explain_failure(found, [turned]) is found
    assert explain_failure(error, []) is error
