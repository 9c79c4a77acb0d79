"""The page: whole, escaped, offline, and robust to what is missing."""

import copy
import html
import json
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest

from lifcal.report import FrameEntry, build_statistics, render_report, write_report
from lifcal.report.figures import Mark, draw_bars, draw_map, draw_series, round_step
from tests.browser import open_browser
from tests.report import cases

EVIL = "<script>alert('x')</script>"
VOID = {"meta", "link", "img", "input"}


class Checker(HTMLParser):
    """Collects tags, what would be loaded, and tags that do not match."""

    def __init__(self):
        super().__init__()
        self.tags, self.open, self.loads, self.wrong = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def check(page):
    checker = Checker()
    checker.feed(page)
    assert checker.wrong == []
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def summary():
    found = cases.run(np.random.default_rng(7))
    frames = [
        *cases.frames_of(found)[1:],
        FrameEntry(EVIL, 0, True, 0.0),
        FrameEntry(EVIL, 99, False, 99.0),
    ]
    statistics = build_statistics(
        found,
        frames=frames,
        pictures={"focused": "/9j/4AAQ", "depth": "iVBORw0KGgo=", "odd": f'"{EVIL}'},
        provenance={
            "raws": EVIL,
            "settings": {"loss": "huber"},
            "folder": f"out/{EVIL}",
            "command": f"lifcal calibrate {EVIL}",
            "date": "2026-01-02 03:04:05+00:00",
        },
        seconds={EVIL: 2.0, "adjustment": 1.0},
    )
    return json.loads(json.dumps(statistics))


def test_all_sections(summary):
    page = render_report(summary)
    checker = check(page)
    assert page.count("<h2>") == 7
    assert checker.tags.count("img") == 2
    assert checker.tags.count("canvas") == 1
    assert page.count("<svg") == 11
    # every figure has a title and a sentence on how to read it
    figures = re.findall(r"<figure>(.*?)</figure>", page, re.DOTALL)
    assert len(figures) == 16
    for figure in figures:
        assert re.search(r"<figcaption>[^<]{8,}</figcaption>", figure), figure[:80]
        assert re.search(r'<p class="how">.{30,}</p>', figure, re.DOTALL), figure[:80]
    assert page.count('class="label"') >= 2 * 11
    assert len(page) < 5e6


def test_text_is_escaped(summary):
    page = render_report(summary)
    checker = check(page)
    assert checker.tags.count("script") == 2  # the data and the viewer
    assert EVIL not in page
    assert page.count("&lt;script&gt;alert") >= 4  # view, frame, provenance, stage
    # in the data of the viewer too, and there it comes back
    data = re.search(r'id="rig-data">(.*?)</script>', page, re.DOTALL).group(1)
    assert EVIL in {camera["name"] for camera in json.loads(data)["cameras"]}


def test_nothing_is_loaded(summary):
    page = render_report(summary)
    assert "http://" not in page
    assert "https://" not in page
    assert all(load.startswith("data:") for load in check(page).loads)
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.parametrize("level", ["good", "usable", "caution", "poor"])
def test_verdict_has_its_color(summary, level):
    assert f".{level} {{ background" in render_report({})
    summary = {**summary, "verdict": {"level": level, "text": EVIL, "reasons": ["a", "b"]}}
    page = render_report(summary)
    assert f'class="verdict {level}"' in page
    assert "<li>b</li>" in page
    assert EVIL not in page


def test_first_screen(summary):
    page = render_report(summary)
    first = page[: page.index("<h2>")]
    for words in ("Error of depth to expect", "Field of view", "Working range", "2026-01-02"):
        assert words in first
    assert "Distortion at the corner" in first
    assert f"lifcal calibrate {html.escape(EVIL)}" in first
    near, far = summary["expected"]["working_range"]
    for entry in summary["expected"]["depth"]:
        assert entry["inside"] == (near <= entry["z_mm"] <= far)
    assert first.count("outside the range") == sum(
        not entry["inside"] for entry in summary["expected"]["depth"]
    )
    # commands to copy, quoted for a shell
    commands = [html.unescape(each) for each in re.findall(r"<code>(.*?)</code>", first)]
    assert shlex.split(commands[1])[:4] == ["lifcal", "depth", "RAWS", "--camera"]
    assert shlex.split(commands[1])[4] == f"out/{EVIL}/camera.json"
    assert [shlex.split(each)[1] for each in commands[1:]] == ["depth", "view", "export"]


def test_each_parameter_once_under_a_name_that_people_know(summary):
    content = copy.deepcopy(summary)
    content["parameters"]["inverse_plane_1"] = {"value": 0.25, "sigma": 0.005}
    page = render_report(content)
    part = page[page.index("<h2>Parameters") : page.index("<h2>The rig")]
    names = re.findall(r"<tr><td>(.*?)<small>", part)
    assert len(names) == len(set(names)) == len(content["parameters"])
    assert "inverse_plane" not in part
    assert "focal plane 1" in names
    assert "4.000 ± 0.080" in part  # 1 / 0.25


def test_no_scale(rng):
    found = cases.run(rng, scale=False)
    page = render_report(build_statistics(found, frames=cases.frames_of(found)))
    check(page)
    assert page.count('"number">no scale') == 4  # f_L, b_L0, B, beta
    first = page[: page.index("<h2>")]
    assert "Not metric" in first
    assert not re.search(r"\d (mm|m)\b", first)
    assert "depth z in arbitrary units" in page
    assert "Known distances" not in page


@pytest.mark.parametrize(
    "missing",
    [
        *("pictures", "focus", "rig", "coverage", "residuals", "parameters", "provenance"),
        *("units", "seconds", "stages", "assumptions", "frames", "verdict", "distances"),
        *("n_frames", "expected"),
    ],
)
def test_missing_parts_are_left_out(summary, missing):
    content = {key: value for key, value in summary.items() if key != missing}
    check(render_report(content))
    check(render_report({**summary, missing: None} if missing != "n_frames" else content))


def list_measured(value, keys=()):
    """Yield the keys that lead to each measured number, for the first entry of every list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from list_measured(inner, (*keys, key))
    elif isinstance(value, list) and value:
        yield from list_measured(value[0], (*keys, 0))
        yield from list_measured(value[-1], (*keys, -1))
    elif isinstance(value, float):
        yield keys


ALWAYS_KNOWN = {
    "edges",
    "low",
    "high",
    "u_low",
    "u_high",
    "z_mm",
    "mm",
    "sigma",
    "seconds",
    "empty_share",
    "share_beyond_3",
    "expected_beyond_3",
}
"""Numbers that are given or counted and so are always finite: edges of bins, shares, times."""


def test_numbers_that_are_not_known(summary):
    """A number that is not finite is null in JSON. Each of them may be, and the page is written."""
    places = [
        keys
        for keys in list_measured(summary)
        if not ALWAYS_KNOWN & set(keys) and keys[:3] != ("residuals", "distribution", "expected")
    ]
    assert ("expected", "field_of_view_deg", -1) in places
    assert len(places) > 50
    failed = []
    for *path, last in places:
        content = copy.deepcopy(summary)
        inner = content
        for key in path:
            inner = inner[key]
        inner[last] = None
        try:
            check(render_report(content))
        except (TypeError, ValueError) as error:
            failed.append((*path, last, str(error)))
    assert failed == []


def test_one_lens_type_and_empty_bins(summary):
    content = copy.deepcopy(summary)
    residuals = content["residuals"]
    residuals["by_lens_type"] = residuals["by_lens_type"][:1]
    for entries in (residuals["by_lens_type_and_depth"], content["residual_scale"]):
        del entries[1:]
    for entry in (residuals["by_radius"][0], residuals["by_view"][0], residuals["by_lens_type"][0]):
        entry.update({key: None for key in entry if key.endswith(("_px", "_percent"))})
    check(render_report(content))
    residuals["by_lens_type_and_depth"] = []
    check(render_report(content))
    check(render_report({}))


def test_written_whole(summary, tmp_path):
    write_report(summary, tmp_path / "deep" / "report.html")
    text = (tmp_path / "deep" / "report.html").read_text(encoding="utf-8")
    assert text == render_report(summary)


@pytest.mark.parametrize(("width", "touch"), [(1400, False), (400, True)])
def test_in_a_browser(summary, tmp_path, width, touch):
    write_report(summary, tmp_path / "report.html")
    with open_browser() as browser:
        page = browser.page(width, 800, touch=touch)
        page.open((tmp_path / "report.html").as_uri())
        page.wait("document.getElementById('rig').width > 0")
        assert page.run("document.documentElement.scrollWidth") <= width
        # the first screen: verdict and expectation are in sight
        assert page.run("document.querySelector('.first').getBoundingClientRect().top") < 800
        page.click(".command button")
        page.wait("document.querySelector('.command button').textContent !== 'copy'")
        if touch:
            page.box("#rig")
            before = page.run("scrollY")
            page.drag_finger("#rig", 0, -150)
            page.wait(f"scrollY > {before} + 50")
        pictures = [problem for problem in page.problems if "net::ERR" not in str(problem)]
        assert pictures == []


# Figures


def rectangles(svg, color):
    found = re.findall(rf'<rect [^>]*y="([\d.]+)"[^>]*height="([\d.]+)" fill="{color}"', svg)
    return [(float(y), float(height)) for y, height in found]


def test_bars_are_in_proportion():
    svg = draw_bars([0.0, 1.0, 2.0, 3.0], [1.0, None, 4.0], "x in px", "y", marks=[Mark(1.0, -1.0)])
    low, high = rectangles(svg, "#8fb8d8")
    assert high[1] == pytest.approx(4.0 * low[1], abs=0.3)
    assert sum(high) == pytest.approx(sum(low), abs=0.2)  # both stand on zero
    assert "x in px" in svg


def test_maps_and_series_survive_flat_data():
    check(draw_map([[0.0, 0.0], [None, 0.0]], (640, 480), "n"))
    check(draw_map([[1.0]], (480, 4800), "n", arrows=[(1.0, 1.0, 0.0, 0.0)], unit_px=1.0))
    check(draw_series([("type 0", [Mark(1.0, 0.0)])], "u", "%", 1.0))
    check(draw_series([], "u", "%", 1.0))
    check(draw_bars([1.0, 1.0], [0.0], "x", "y"))


@pytest.mark.parametrize(("least", "step"), [(0.11, 0.2), (1.0, 1.0), (3.0, 5.0), (6e5, 1e6)])
def test_round_steps(least, step):
    assert round_step(least) == pytest.approx(step)
