"""The page of a live run: what it serves, to whom, and that its script finds what it needs."""

import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest

from lifcal.errors import DataError
from lifcal.report.live_page import LivePage, LiveStep


def make_step(rng, number, **changes):
    values = {"F": 900.0 + number, "c_x": 320.0, "c_y": 240.0, "B": 0.37}
    content = {
        "name": f"{number:04d}",
        "status": "used",
        "text": "300 matches with the map.",
        "advice": "move nearer (about 8 more frames to the targets)",
        "done": False,
        "n_keyframes": number,
        "values": values,
        "sigmas": {name: 0.01 * value / (1 + number) for name, value in values.items()},
        "limits": {"F": 0.5, "c_x": 1.0, "c_y": 1.0},
        "coverage": rng.random((8, 8)) < 0.6,
        "points": np.append(rng.normal(size=(2000, 3)), [[np.nan, 0.0, 0.0]], axis=0),
        "cameras": rng.normal(size=(number, 3)),
        "path": rng.normal(size=(number, 3)),
        "image": rng.integers(0, 255, (48, 64), dtype=np.uint8),
        **changes,
    }
    return LiveStep(**content)


@pytest.fixture
def page():
    found = LivePage()
    yield found
    found.close()


def read_state(page):
    with urllib.request.urlopen(page.url + "events", timeout=10) as stream:
        for line in stream:
            if line.startswith(b"data:"):
                return json.loads(line[5:])
    raise AssertionError("no state came")


def test_state_and_image_follow_the_run(page, rng):
    for number in range(1, 4):
        page.show(make_step(rng, number))
    state = read_state(page)
    assert state["frames"] == 3
    assert state["advice"].startswith("Move nearer (about 8")
    assert len(state["points"]) <= 1500
    assert state["series"][0]["name"] == "F"
    assert len(state["series"][0]["values"]) == 3
    assert state["series"][0]["limit"] == 0.5
    rows = {row["name"]: row for row in state["parameters"]}
    assert rows["B"]["target"] == ""
    assert rows["F"]["value"] == "903.0 ± 2.3 px"
    assert rows["F"]["target"] == "0.5 px"
    with urllib.request.urlopen(page.url + "image?frame=3", timeout=10) as reply:
        assert reply.headers["Content-Type"] == "image/jpeg"
        assert reply.read(2) == b"\xff\xd8"
    page.show(make_step(rng, 4, values={}, sigmas={}, limits={}, advice="", image=None))
    assert read_state(page)["parameters"] == []


def test_the_script_uses_what_the_state_holds(page, rng):
    with urllib.request.urlopen(page.url, timeout=10) as reply:
        text = reply.read().decode()
    page.show(make_step(rng, 1))
    state = read_state(page)
    assert set(re.findall(r"\bstate\.(\w+)", text)) <= set(state)
    ids = set(re.findall(r'id="(\w+)"', text))
    assert set(re.findall(r'byId\("(\w+)"\)', text)) <= ids
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def refuse(request):
    """Return the status with which a request is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    refused.value.close()
    return refused.value.code


def test_strangers_see_nothing(page, rng):
    page.show(make_step(rng, 1))
    bare = page.url.rsplit("/", 2)[0]
    assert refuse(f"{bare}/events") in (403, 404)
    foreign = urllib.request.Request(page.url + "events", headers={"Origin": "http://evil.test"})
    assert refuse(foreign) in (400, 403)
    with pytest.raises(DataError, match="is taken by another program"):
        LivePage(int(bare.rsplit(":", 1)[1]))
