"""The page: whole, escaped, offline, and robust to what is missing."""

import copy
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from lifcal.report import FrameEntry, build_statistics, render_report, write_report
from lifcal.report.figures import Mark, draw_bars, draw_map, draw_series, round_step
from tests.report import cases

EVIL = "<script>alert('x')</script>"
VOID = {"meta", "link", "img"}


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
        provenance={"raws": EVIL, "settings": {"loss": "huber"}},
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
    summary = {**summary, "verdict": {"level": level, "text": EVIL, "reasons": ["a", "b"]}}
    page = render_report(summary)
    assert f'class="verdict {level}"' in page
    assert "<li>b</li>" in page
    assert EVIL not in page


def test_no_scale(rng):
    found = cases.run(rng, scale=False)
    page = render_report(build_statistics(found, frames=cases.frames_of(found)))
    check(page)
    assert page.count('"number">no scale') == 4  # f_L, b_L0, B, beta
    assert "depth z in arbitrary units" in page
    assert "Known distances" not in page


@pytest.mark.parametrize(
    "missing",
    [
        *("pictures", "focus", "rig", "coverage", "residuals", "parameters", "provenance"),
        *("units", "seconds", "stages", "assumptions", "frames", "verdict", "distances"),
        "n_frames",
    ],
)
def test_missing_parts_are_left_out(summary, missing):
    content = {key: value for key, value in summary.items() if key != missing}
    check(render_report(content))
    check(render_report({**summary, missing: None} if missing != "n_frames" else content))


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
