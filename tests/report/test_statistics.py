"""What summary.json holds: bins add up, a bias shows, and the verdict follows its rule."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lifcal.bundle import AdjustOptions, FocusTerm
from lifcal.bundle.files import summary_to_dict
from lifcal.report import FrameEntry, build_statistics
from lifcal.report import statistics as module
from tests.report import cases


@pytest.fixture(scope="module")
def adjustment():
    return cases.run(np.random.default_rng(5))


@pytest.fixture(scope="module")
def statistics(adjustment):
    return build_statistics(
        adjustment,
        frames=cases.frames_of(adjustment),
        pictures={"focused": "iVBORw0KGgo="},
        provenance={"raws": ["a.png"], "size": np.int64(3), "missing": float("nan")},
        seconds={"grid": 1.5},
    )


def test_plain_json_and_what_the_adjustment_says(adjustment, statistics):
    assert json.loads(json.dumps(statistics, allow_nan=False)) == statistics
    for key, value in json.loads(json.dumps(summary_to_dict(adjustment))).items():
        if key != "findings":  # the verdict adds those of the whole calibration
            assert statistics[key] == value, key
    assert [entry["code"] for entry in statistics["findings"]] == ["few-views"]
    assert statistics["format"] == "lifcal-calibration"
    assert statistics["provenance"] == {"raws": ["a.png"], "size": 3, "missing": None}
    assert statistics["seconds"] == {"grid": 1.5}
    assert statistics["pictures"] == {"focused": "iVBORw0KGgo="}


def test_bins_add_up_to_the_observations(adjustment, statistics):
    n = adjustment.summary.n_used
    assert 0 < n < adjustment.summary.n_observations  # some were rejected
    coverage, residuals = statistics["coverage"], statistics["residuals"]
    assert np.sum(coverage["image"]["counts"]) == n
    assert sum(coverage["virtual_depth"]["counts"]) == n
    assert sum(coverage["depth"]["counts"]) == n
    assert sum(coverage["views_per_point"]["counts"]) == adjustment.summary.n_points
    assert np.sum(residuals["image"]["n"]) == n
    for key in ("by_radius", "by_depth", "by_view", "by_lens_type"):
        assert sum(entry["n"] for entry in residuals[key]) == n, key
    spread = residuals["distribution"]
    everything = 2 * adjustment.summary.n_observations
    assert sum(spread["counts"]) + spread["n_beyond"] == everything
    assert sum(spread["expected"]) == pytest.approx(everything, rel=1e-5)  # 6e-7 is beyond 5


def test_figures_by_hand(adjustment, statistics):
    """One bin of each kind, counted and averaged directly."""
    observations, state = adjustment.problem.observations, adjustment.state
    used = adjustment.problem.active_mask
    width, height = adjustment.camera.image_size
    x, y = observations.points_raw_px[used].T
    inside = (x + 0.5 >= width * 5 / 12) & (x + 0.5 < width * 6 / 12)
    inside &= (y + 0.5 >= height * 2 / 12) & (y + 0.5 < height * 3 / 12)
    image = statistics["residuals"]["image"]
    residuals = adjustment.residuals_px[used]
    assert image["n"][2][5] == inside.sum() > 0
    assert image["mean_dx_px"][2][5] == pytest.approx(residuals[inside, 0].mean(), rel=1e-5)
    assert image["mean_dy_px"][2][5] == pytest.approx(residuals[inside, 1].mean(), rel=1e-5)
    rms = np.sqrt(np.mean(residuals[inside] ** 2))
    assert image["rms_px"][2][5] == pytest.approx(rms, rel=1e-5)
    # the largest angle, from the cosine rule
    places = state.positions_world_mm()
    largest = 0.0
    for point in range(len(state.points_world_mm)):
        views = np.unique(observations.view_indices[used & (observations.point_indices == point)])
        for i in views:
            for j in views[views > i]:
                a, b = (np.linalg.norm(places[k] - state.points_world_mm[point]) for k in (i, j))
                c = np.linalg.norm(places[i] - places[j])
                angle = np.degrees(np.arccos((a**2 + b**2 - c**2) / (2 * a * b)))
                largest = max(largest, angle)
    assert statistics["coverage"]["angle_deg"]["largest"] == pytest.approx(largest, rel=1e-9)
    camera = np.array(statistics["rig"]["cameras"][3]["world_from_cam"])
    np.testing.assert_allclose(camera[:, 3], places[3], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(camera[:, :3], state.rotations[3].T, atol=1e-5)


def test_noise_is_normal(adjustment, statistics):
    """2 % outliers aside, the distribution is the expected one: 25 % is 5 sigma of these bins."""
    spread = statistics["residuals"]["distribution"]
    found, wanted = np.array(spread["counts"]), np.array(spread["expected"])
    middle = wanted > 400
    assert middle.sum() >= 6
    np.testing.assert_allclose(found[middle], wanted[middle], rtol=0.25)
    assert spread["share_beyond_3"] > 2 * spread["expected_beyond_3"]


def test_sigmas_of_the_observations_count(adjustment, statistics):
    """With covariances four times as large and half the noise, nothing normalized changes."""
    observations = adjustment.problem.observations
    larger = replace(observations, covariances_px2=4.0 * observations.covariances_px2)
    other = replace(
        adjustment,
        problem=replace(adjustment.problem, observations=larger),
        summary=replace(adjustment.summary, noise=adjustment.summary.noise / 2.0),
    )
    found = build_statistics(other, frames=cases.frames_of(adjustment))
    assert found["residuals"]["distribution"] == statistics["residuals"]["distribution"]


def test_a_magnified_lens_type_shows(rng, statistics):
    for entry in statistics["residuals"]["by_lens_type"]:
        assert abs(entry["scale_percent"]) < 4.0 * entry["sigma_scale_percent"]
    assert statistics["verdict"]["codes"] == ["few-views"]
    biased = cases.run(rng, magnified=1, outliers=0.0)
    found = build_statistics(biased, frames=cases.frames_of(biased))
    scales = [entry["scale_percent"] for entry in found["residuals"]["by_lens_type"]]
    # what is common to all types goes to alpha and beta: two thirds of the 3 % are left
    assert scales[1] > 1.5
    assert scales[0] < -0.5
    assert scales[2] < -0.5
    assert found["verdict"]["level"] == "caution"
    assert "lens type 1" in found["verdict"]["text"]
    assert "larger" in found["verdict"]["text"]


def test_no_scale(rng):
    plain = cases.run(rng, scale=False)
    found = build_statistics(plain, frames=cases.frames_of(plain))
    assert found["rig"]["unit"] == "arbitrary units"
    assert found["units"]["B"] == "no scale"
    assert found["units"]["F"] == "px"
    assert found["verdict"]["level"] == "caution"
    assert "no scale" in found["verdict"]["text"]


def test_assumptions_name_the_focus_term(rng, adjustment, statistics):
    texts = {entry["what"]: entry["text"] for entry in statistics["assumptions"]}
    assert texts["focus-vignetting term"].startswith("Off")
    assert "k0, p0, p1" in texts["distortion"]
    assert "distances" in texts["scale"]
    term = FocusTerm(adjustment.camera.grid.focal_planes)
    options = AdjustOptions(distortion="none", focus=term, focus_strength=0.01)
    focused = cases.run(rng, options=options)
    found = build_statistics(focused, frames=cases.frames_of(focused))
    texts = {entry["what"]: entry["text"] for entry in found["assumptions"]}
    assert texts["focus-vignetting term"].startswith("On (linear), strength 0.01, given")
    assert texts["distortion"].startswith("None")


def test_size_is_bounded(adjustment, monkeypatch):
    """Thinned evenly, with the first and the last."""
    frames = [FrameEntry(f"frame{i}.png", i, i % 2 == 0, float(i)) for i in range(20000)]
    monkeypatch.setattr(module, "_MAX_POINTS", 20)
    found = build_statistics(adjustment, frames=frames)
    assert len(json.dumps(found, indent=2)) < 3e6
    points = adjustment.state.points_world_mm
    assert len(found["rig"]["points"]) == 20 < len(points)
    np.testing.assert_allclose(found["rig"]["points"][-1], points[-1], atol=0.01)
    assert found["n_frames"] == 20000
    assert found["n_registered"] == 10000
    assert found["frames"][-1]["name"] == "frame19999.png"
