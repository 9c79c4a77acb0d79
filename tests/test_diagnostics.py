"""Findings: records that survive JSON, in a table that the docs show."""

import json
from pathlib import Path

import numpy as np
import pytest

from lifcal.diagnostics import KINDS, Finding, Severity, format_kinds, keep_gravest
from lifcal.errors import DataError

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "findings.md"


def test_survives_json():
    found = Finding.of("grid-moved", "the grid moved", moved_px=0.3)
    assert found.severity is Severity.NOTE
    assert Finding.from_dict(found.as_dict()) == found


@pytest.mark.parametrize(
    "content",
    [{}, {"code": "no-scale", "severity": "bad", "text": ""}, [], None, {"code": 1, "text": "a"}],
)
def test_what_is_no_finding_is_said(content):
    with pytest.raises(DataError, match="not a finding"):
        Finding.from_dict(content)


def test_only_codes_and_severities_of_the_table():
    with pytest.raises(KeyError):
        Finding.of("no-such-code", "")
    with pytest.raises(ValueError, match="cannot be 'poor'"):
        Finding.of("no-scale", "", severity=Severity.POOR)


def test_of_several_about_one_thing_the_gravest_is_kept():
    def weak(name, severity):
        return Finding.of("parameter-uncertain", name, severity=severity, parameter=name)

    note = Finding.of("points-behind", "1 point")
    several = [
        note,
        weak("F", Severity.CAUTION),
        weak("B", Severity.CAUTION),
        note,
        weak("B", Severity.POOR),
        Finding.of("no-scale", "first"),
        Finding.of("no-scale", "second"),
    ]
    found = keep_gravest(several)
    assert [(each.text, each.severity.value) for each in found] == [
        ("B", "poor"),
        ("F", "caution"),
        ("first", "caution"),
        ("1 point", "note"),
        ("1 point", "note"),
    ]


def test_the_page_holds_the_table():
    assert format_kinds() in PAGE.read_text()


@pytest.mark.parametrize("code", KINDS)
def test_sentences_of_the_table_end(code):
    kind = KINDS[code]
    assert kind.meaning.endswith(".")
    assert kind.remedy.endswith(".")
    assert "|" not in kind.meaning + kind.remedy


def test_evidence_is_plain():
    """Whatever numbers a stage hands over, the finding can be written as JSON."""
    found = Finding.of(
        "discs-missing",
        "",
        relative_sigma=float("nan"),
        count=np.int64(3),
        ratio=np.float32(0.5),
        places=np.arange(2),
        pair=(1, 2),
    )
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["evidence"] == {
        "relative_sigma": None,
        "count": 3,
        "ratio": 0.5,
        "places": [0, 1],
        "pair": [1, 2],
    }
