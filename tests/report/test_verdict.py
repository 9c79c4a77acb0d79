"""The verdict follows codes and numbers: its rule, and that no text has a part in it."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle.degeneracy import describe_geometry
from lifcal.diagnostics import KINDS, Finding, Severity
from lifcal.report import (
    FrameEntry,
    assess,
    build_statistics,
    judge,
    judge_failure,
    render_report,
)
from tests.report import cases


@pytest.fixture(scope="module")
def adjustment():
    return cases.run(np.random.default_rng(5))


@pytest.fixture(scope="module")
def statistics(adjustment):
    """Numbers of a good calibration: those of eight views, called twenty."""
    found = build_statistics(adjustment, frames=cases.frames_of(adjustment))
    return {**found, "n_views": 20, "n_frames": 20, "n_usable": 20, "n_registered": 20}


def change(statistics, **values):
    content = copy.deepcopy(statistics)
    content.update(values)
    return content


def verdict_of(content, *findings):
    """The verdict on numbers, and on findings of the stages."""
    return assess(content, findings)[1]


def scale_of(percent, sigma):
    entry = {"lens_type": 2, "u_low": 2.0, "u_high": 3.0, "n": 100}
    return [{**entry, "percent": percent, "sigma_percent": sigma}]


def depth_of(percent):
    near = {"quantile": 0.1, "depth_mm": 400.0, "sigma_percent": 0.5}
    return [near, {"quantile": 0.9, "depth_mm": 900.0, "sigma_percent": percent}]


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ({}, "good"),
        ({"scale_source": None}, "caution"),
        ({"n_views": 10}, "good"),
        ({"n_views": 9}, "usable"),
        ({"n_views": 5}, "caution"),
        ({"n_usable": 14, "n_registered": 14}, "usable"),
        ({"n_usable": 13, "n_registered": 13}, "caution"),
        ({"n_registered": 14}, "usable"),
        ({"n_registered": 13}, "caution"),
        ({"typical_depths": depth_of(0.9)}, "good"),
        ({"typical_depths": depth_of(1.1)}, "usable"),
        ({"typical_depths": depth_of(3.1)}, "caution"),
        ({"typical_depths": depth_of(10.1)}, "poor"),
        ({"n_used": 100, "n_observations": 120}, "caution"),
        ({"residual_scale": scale_of(-2.0, 0.1)}, "caution"),
        ({"residual_scale": scale_of(-2.0, 1.0)}, "good"),
        ({"residual_scale": scale_of(6.0, 0.1)}, "poor"),
        ({"converged": False}, "poor"),
        ({"scale_source": None, "converged": False}, "poor"),
    ],
)
def test_verdict_by_numbers(statistics, values, level):
    assert verdict_of(change(statistics, **values))["level"] == level


@pytest.mark.parametrize("severity", list(Severity))
def test_verdict_by_findings(statistics, severity):
    found = verdict_of(statistics, Finding("flat-scene", severity, "the scene is flat"))
    assert found["level"] == {"note": "good"}.get(severity.value, severity.value)
    assert found["codes"] == ([] if severity is Severity.NOTE else ["flat-scene"])


@pytest.mark.parametrize(
    ("name", "relative", "scale", "level"),
    [
        ("F", 0.011, "markers", "poor"),
        ("F", 0.009, "markers", "usable"),
        ("F", 0.0019, "markers", "good"),
        ("B", 0.051, "markers", "poor"),
        ("B", 0.049, "markers", "usable"),
        ("B", 0.019, "markers", "good"),
        ("B", 0.051, None, "caution"),
    ],
)
def test_verdict_by_sigma(statistics, name, relative, scale, level):
    content = change(statistics, scale_source=scale)
    entry = content["parameters"][name]
    entry["sigma"] = relative * abs(entry["value"])
    assert verdict_of(content)["level"] == level


@pytest.mark.parametrize(
    ("part", "level"),
    [(0.0039, "good"), (0.0041, "usable"), (0.011, "caution"), (0.031, "poor")],
)
def test_verdict_by_the_principal_point(statistics, part, level):
    content = change(statistics)
    content["parameters"]["c_y"]["sigma"] = part * content["image_size_px"][0]
    assert verdict_of(content)["level"] == level


def test_a_forgotten_color_pattern_is_in_the_verdict(statistics):
    found = Finding.of("bayer-missing", "0000.png: is --bayer missing?", frame="0000")
    verdict = verdict_of(statistics, found)
    assert (verdict["level"], verdict["codes"]) == ("caution", ["bayer-missing"])
    assert "--bayer (rggb" in verdict["help"][0]


def test_the_verdict_says_what_would_help(statistics):
    content = change(statistics, n_views=7, n_registered=19)
    content["parameters"]["c_x"]["sigma"] = 0.005 * content["image_size_px"][0]
    verdict = verdict_of(content)
    assert verdict["level"] == "usable"
    assert verdict["text"].startswith("Usable: the principal point is known to 3.2 px only, 0.5 %")
    assert verdict["codes"] == ["center-uncertain", "few-views", "frames-not-registered"]
    assert verdict["help"] == [KINDS[code].remedy for code in verdict["codes"]]
    assert verdict_of(statistics)["help"] == []


def test_a_good_verdict_names_what_counts(statistics):
    text = verdict_of(statistics)["text"]
    for word in (
        "F is known to 0.19 %",
        "B to 0.39 %",
        "c to 1.5 px",
        "depths between 436 mm and ",
    ):
        assert word in text
    assert "20 views, scale from" in text


@pytest.mark.parametrize("scale", [True, False])
def test_typical_depths_are_those_of_the_scene(adjustment, statistics, scale):
    """Against the spread of depths that the covariance of alpha and beta gives, drawn at random."""
    if not scale:
        without = cases.run(np.random.default_rng(5), scale=False)
        assert build_statistics(without, frames=cases.frames_of(without))["typical_depths"] == []
        return
    found = adjustment.covariance
    places = [found.names.index(name) for name in ("alpha", "beta")]
    array = adjustment.state.array
    draws = np.random.default_rng(1).multivariate_normal(
        [array.alpha, array.beta_mm], found.array[np.ix_(places, places)], 20_000
    )
    depths = [entry["depth_mm"] for entry in statistics["typical_depths"]]
    assert depths == sorted(depths)
    for entry in statistics["typical_depths"]:
        u = array.alpha + array.beta_mm / entry["depth_mm"]
        spread = np.std(draws[:, 1] / (u - draws[:, 0])) / entry["depth_mm"]
        # 20 000 draws know a standard deviation to 0.5 %
        assert entry["sigma_percent"] == pytest.approx(100.0 * spread, rel=0.03)


def test_a_failure_is_a_level_of_its_own():
    verdict = judge_failure("only 3 of 14 focused images were registered. Move sideways")
    assert verdict["level"] == "failed"
    assert verdict["text"].startswith("There is no calibration: only 3 of 14")
    assert verdict["reasons"] == ["only 3 of 14 focused images were registered. Move sideways"]


def test_no_text_has_a_part_in_the_verdict(statistics):
    """Whatever findings say in words, level and codes are the same."""
    numbers = change(statistics, scale_source=None, converged=False, n_views=7)
    numbers["parameters"]["c_x"]["sigma"] = 0.02 * numbers["image_size_px"][0]
    stages = [
        Finding.of("flat-scene", "the camera turned on the spot: do not fit"),
        Finding.of("known-optics-fit", "the assumed f_L and B do not fit"),
        Finding.of("grid-misfit", "fine", severity=Severity.POOR),
        Finding.of("parameter-uncertain", "F", severity=Severity.CAUTION, parameter="F"),
    ]
    findings, verdict = assess(numbers, stages)
    assert len(findings) >= 7
    for garble in (lambda text: "", lambda text: text[::-1], lambda text: "Good. they fit"):
        changed = [
            replace(found, text=garble(found.text)) for found in map(Finding.from_dict, findings)
        ]
        again = judge(numbers, changed)
        assert (again["level"], again["codes"]) == (verdict["level"], verdict["codes"])
    # and that this can fail: without its gravest findings the level is another
    cautions = [found for found in changed if found.severity is not Severity.POOR]
    assert judge(numbers, cautions)["level"] == "caution"


def test_the_verdict_asks_what_images_cannot_tell(statistics):
    question = "Is that the focal length engraved on your lens?"
    value = statistics["parameters"]["f_L"]["value"]
    for nominal in (None, value):
        text = verdict_of(change(statistics, nominal_focal_length_mm=nominal))["text"]
        assert f"f_L came out as {value:.3g} mm. {question}" in text
        assert "check --pixel-size-um" in text
    # whatever else is to be said
    assert question in verdict_of(change(statistics, converged=False))["text"]
    assert question not in verdict_of(change(statistics, scale_source=None))["text"]
    held = change(statistics)
    held["parameters"]["f_L"]["sigma"] = 0.0
    assert question not in verdict_of(held)["text"]


@pytest.mark.parametrize(("factor", "level"), [(1.09, "good"), (1.12, "caution"), (0.6, "caution")])
def test_a_nominal_focal_length_that_does_not_fit_is_a_caution(statistics, factor, level):
    nominal = statistics["parameters"]["f_L"]["value"] / factor
    found = verdict_of(change(statistics, nominal_focal_length_mm=nominal))
    assert found["level"] == level
    if level == "caution":
        assert f"and {nominal:g} mm was given" in found["text"]


def test_frames_that_could_not_be_used_are_not_called_unregistered(adjustment):
    more = [FrameEntry("cut.png", 90, False, 90.0, usable=False)] * 2
    more.append(FrameEntry("blurred.png", 92, False, 92.0))
    frames = [*cases.frames_of(adjustment), *more]
    found = build_statistics(adjustment, frames=frames)
    n = len(frames)
    assert f"2 of {n} frames could not be used" in found["verdict"]["reasons"]
    assert f"1 of {n} frames were not registered" in found["verdict"]["reasons"]
    page = render_report(found)
    assert "Could not be used: cut.png, cut.png. Not registered: blurred.png." in page


def test_no_reason_is_given_twice(statistics):
    content = change(statistics)
    content["parameters"]["B"]["sigma"] = 0.06 * content["parameters"]["B"]["value"]
    weak = Finding.of("parameter-uncertain", "B is known to 6 %: more views", parameter="B")
    other = Finding.of("parameter-uncertain", "F is known to 0.9 %", parameter="F")
    verdict = verdict_of(content, other, weak)
    assert verdict["reasons"] == ["B is known to 6 % only", "F is known to 0.9 %"]
    assert verdict["text"].startswith("Do not trust it: B is known to 6 % only (and 1 more")


def test_a_degenerate_geometry_is_poor(adjustment, statistics):
    """As the adjustment finds it: the camera on the spot, and points at one depth."""
    state = adjustment.state
    standing = replace(state, translations_mm=np.zeros_like(state.translations_mm))
    (found,) = describe_geometry(standing, adjustment.problem.observations)
    assert verdict_of(statistics, found)["level"] == "poor"
    flat = state.points_world_mm.copy()
    flat[:, 2] = 800.0
    turned = np.broadcast_to(np.eye(3), state.rotations.shape).copy()
    shifts = state.translations_mm * (1.0, 1.0, 0.0)
    at_one_depth = replace(state, rotations=turned, translations_mm=shifts, points_world_mm=flat)
    # its micro images show several depths: no rigid scene fits both
    one_depth, flat_scene = describe_geometry(at_one_depth, adjustment.problem.observations)
    assert one_depth.code == "not-rigid"
    assert verdict_of(statistics, one_depth)["level"] == "poor"
    assert verdict_of(statistics, flat_scene)["level"] == "caution"


def split_of(name, sigmas):
    return {"name": name, "differences": {"c_x": {"value": sigmas, "sigma": 1.0}}}


@pytest.mark.parametrize(("factor", "level"), [(1.9, "good"), (2.1, "caution"), (5.1, "poor")])
def test_halves_that_disagree(statistics, factor, level):
    halves = {"factors": {"c_x": factor, "F": 1.0}}
    halves["splits"] = [split_of("left and right", 3.0), split_of("even and odd frames", -9.0)]
    found = verdict_of(change(statistics, cross_validation=halves))
    assert found["level"] == level
    if level != "good":
        assert found["codes"] == ["halves-disagree"]
        assert "even and odd frames differ in c_x by 9.0 sigma" in found["text"]
    none = verdict_of(change(statistics, cross_validation={"splits": [], "factors": {}}))
    assert none["codes"] == ["not-cross-validated"]


def test_sigmas_after_cross_validation_count(statistics):
    """What the adjustment said of c before its halves were compared is out of date."""
    content = change(statistics)
    width = content["image_size_px"][0]
    content["parameters"]["c_x"]["sigma"] = 0.02 * width
    before = Finding.of("center-uncertain", "c is known to 12 px", sigma_px=12.0)
    findings, verdict = assess(content, [before])
    (said,) = [each for each in findings if each["code"] == "center-uncertain"]
    assert said["evidence"] == {"sigma_px": 0.02 * width}
    assert verdict["reasons"] == [said["text"]]
