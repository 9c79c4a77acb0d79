"""The page of a calibration that failed."""

import json

from lifcal.diagnostics import KINDS, Finding
from lifcal.errors import DataError, EstimationError
from lifcal.report.failure import describe_failure, render_failure

TURNED = Finding.of("turned-on-the-spot", "the camera only turned")


def test_it_says_why_and_what_to_do():
    error = EstimationError(
        "only 3 of 14 <images>", stage="sfm", evidence={"explained_by": ["turned-on-the-spot"]}
    )
    notes = [Finding.of("frame-unusable", "0003.png: is <black>", frame="0003"), TURNED]
    summary = describe_failure(
        error,
        frames=["a", "b"],
        done=["a"],
        findings=notes,
        pictures={"Frame a": "/9j/AAAA", "bad": "<script>"},
        provenance={"folder": "here"},
    )
    json.dumps(summary, allow_nan=False)
    assert summary["verdict"]["level"] == "failed"
    assert summary["verdict"]["codes"] == ["turned-on-the-spot"]
    assert summary["verdict"]["help"] == [KINDS["turned-on-the-spot"].remedy]
    assert summary["stage"] == "sfm"
    assert [entry["code"] for entry in summary["findings"]] == [
        "turned-on-the-spot",
        "frame-unusable",
    ]
    page = render_failure(summary)
    for word in (
        "only 3 of 14 &lt;images&gt;",
        "0003.png: is &lt;black&gt;",
        "1 of 2 frames were focused",
        KINDS["turned-on-the-spot"].remedy,
        "data:image/jpeg;base64,/9j/AAAA",
        "What a calibration needs",
    ):
        assert word in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_an_error_without_stage_and_pictures():
    summary = describe_failure(DataError("none of 2 frames can be used"), frames=["a", "b"])
    page = render_failure(summary)
    assert "none of 2 frames can be used" in page
    assert "<img" not in page
    many = [Finding.of("frame-unusable", f"{i}: bad", frame=str(i)) for i in range(100)]
    page = render_failure(describe_failure(DataError("x"), frames=[], findings=many))
    assert "and 60 more" in page
