"""The verdict on a calibration, computed from findings and numbers and never from text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lifcal.camera.parameters import format_value
from lifcal.diagnostics import KINDS, Finding, Severity, keep_gravest

_POOR_SIGMA = {"F": 0.01, "B": 0.05}
"""Relative standard deviation from which a calibration is poor."""
_USABLE_SIGMA = {"F": 0.002, "B": 0.02}
"""Relative standard deviation from which a calibration could be clearly better: several times what
twenty frames of the smallest simulated camera give."""

_NOMINAL_TOLERANCE = 0.1
"""Relative tolerance of a nominal focal length: lenses differ from their engraving by up to 9 %."""

_CAUTION_SCALE_PERCENT, _POOR_SCALE_PERCENT = 1.0, 5.0
"""Residual scale of a lens type, in per cent. B is off by several times as much."""
_SIGNIFICANT = 3.0
"""Sigmas from which a residual scale is not noise."""
_CAUTION_REJECTED = 0.1
"""Share of rejected observations. Mismatches and reflections make some per cent of a good recording
useless; more than a tenth means that something is wrong with the scene or the model."""
_USABLE_CENTER, _CAUTION_CENTER, _POOR_CENTER = 0.004, 0.01, 0.03
"""Standard deviation of the principal point, as a part of the image's width. Makers place a lens
within some per cent of the sensor's middle, so a calibration that knows less than the last says
nothing new. The first is twice what sixteen frames of the smallest simulated camera give."""
_USABLE_DEPTH, _CAUTION_DEPTH, _POOR_DEPTH = 0.01, 0.03, 0.1
"""Relative standard deviation that the camera gives to a depth. A single pixel has about 1 % of its
own, so a camera with less is not what limits a depth map; a tenth is worse than a tape measure held
by eye."""
_USABLE_VIEWS, _CAUTION_VIEWS = 10, 6
"""Numbers of views below which more would help, and below which a single wrong pose could bend the
result: with fewer than six, halves of the recording have two or three."""
_CAUTION_MISSING = 1.0 / 3.0
"""Share of frames without a pose, or unusable. Some blurred frames say nothing about the others;
if it is more than this, the recording itself is doubtful."""
_CAUTION_FACTOR, _POOR_FACTOR = 2.0, 5.0
"""Factors on a sigma by cross-validation, from which the level is caution and poor. Noise alone
makes the largest factor of ten parameters 1.3 on
average, and more than 2 in fewer than one of a hundred recordings."""

_HEADS = {
    Severity.USABLE: "Usable",
    Severity.CAUTION: "Use with care",
    Severity.POOR: "Do not trust it",
}
"""How the verdict of each level begins."""

FAILED = "failed"
"""Level of a calibration that came to no camera."""

_MOST_NOTES = 200
"""Largest number of notes in a summary: thousands of frames may be unusable for one reason."""


def assess(
    content: Mapping[str, Any], findings: Sequence[Finding]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return all findings about a calibration for JSON, the gravest first, and the verdict.

    Parameters
    ----------
    content : mapping
        What summary.json holds, less findings and verdict.
    findings : sequence of Finding
        Findings of the stages.
    """
    # The numbers of the whole calibration first: their sigmas are cross-validated.
    every = keep_gravest([*examine(content), *findings])
    graver = [finding for finding in every if finding.severity is not Severity.NOTE]
    notes = [finding for finding in every if finding.severity is Severity.NOTE]
    notes.sort(key=lambda finding: finding.code == "frame-unusable")
    return (
        [finding.as_dict() for finding in [*graver, *notes[:_MOST_NOTES]]],
        judge(content, graver),
    )


def judge(content: Mapping[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the verdict: level, one line of text, codes and texts of its reasons, what would help.

    The level is that of the gravest finding: `poor`, `caution` or `usable`, and `good` if there is
    none. docs/reference/findings.md says what each code means.

    Parameters
    ----------
    content : mapping
        What summary.json holds.
    findings : sequence of Finding
        The gravest first. Notes are no reasons.
    """
    reasons = [finding for finding in findings if finding.severity is not Severity.NOTE]
    question = _ask_engraving(content, {finding.code for finding in reasons})
    if not reasons:
        return {
            "level": "good",
            "text": f"Good: {_describe_good(content)}.{question}",
            "codes": [],
            "reasons": [],
            "help": [],
        }
    level = max((finding.severity for finding in reasons), key=lambda severity: severity.rank)
    more = f" (and {len(reasons) - 1} more, below)" if len(reasons) > 1 else ""
    remedies = [KINDS[finding.code].remedy for finding in reasons if finding.code in KINDS]
    return {
        "level": level.value,
        "text": f"{_HEADS[level]}: {reasons[0].text.rstrip('.?')}{more}.{question}",
        "codes": [finding.code for finding in reasons],
        "reasons": [finding.text for finding in reasons],
        "help": list(dict.fromkeys(remedies)),
    }


def judge_failure(reason: str) -> dict[str, Any]:
    """Return the verdict on a calibration that came to no camera.

    Parameters
    ----------
    reason : str
        What the error says, with what to do.
    """
    return {
        "level": FAILED,
        "text": f"There is no calibration: {reason.rstrip('.')}.",
        "codes": [],
        "reasons": [reason],
        "help": [],
    }


def _describe_good(content: Mapping[str, Any]) -> str:
    known = [f"F is known to {_percent(_relative_sigma(content, 'F'))}"]
    known.append(f"B to {_percent(_relative_sigma(content, 'B'))}")
    off = _find_center_sigma(content)
    if off > 0.0:
        known.append(f"c to {off:.2g} px")
    depths = content.get("typical_depths") or []
    if depths:
        worst = max(depths, key=lambda entry: float(entry["sigma_percent"]))
        known.append(
            f"depths between {_length(depths[0]['depth_mm'])} and "
            f"{_length(depths[-1]['depth_mm'])} to {worst['sigma_percent']:.2g} %"
        )
    return (
        f"{', '.join(known)}; {content['n_views']} views, scale from {content['scale_source']}, "
        "and the lens types agree"
    )


def examine(content: Mapping[str, Any]) -> list[Finding]:
    """Return findings from the numbers of a whole calibration.

    Parameters
    ----------
    content : mapping
        What summary.json holds, less findings and verdict.
    """
    found: list[Finding] = []
    if not content["converged"]:
        text = f"the adjustment did not converge ({content['reason']})"
        found.append(Finding.of("not-converged", text, reason=content["reason"]))
    found += _examine_sigmas(content)
    found += _examine_depths(content.get("typical_depths") or [])
    found += _examine_scale(content["residual_scale"])
    found += _examine_halves(content.get("cross_validation"))
    if content["scale_source"] is None:
        text = "there is no scale: lengths, beta, B, b_L0 and f_L are not metric"
        found.append(Finding.of("no-scale", text))
    found += _compare_with_nominal(content)
    found += _examine_counts(content)
    return found


def _examine_sigmas(content: Mapping[str, Any]) -> list[Finding]:
    found = []
    metric = content["scale_source"] is not None
    for name, limit in _POOR_SIGMA.items():
        relative = _relative_sigma(content, name)
        if relative > _USABLE_SIGMA[name] and (metric or name == "F"):
            found.append(
                Finding.of(
                    "parameter-uncertain",
                    f"{name} is known to {100.0 * relative:.2g} % only",
                    severity=Severity.POOR if relative > limit else Severity.USABLE,
                    parameter=name,
                    relative_sigma=relative,
                )
            )
    width = content["image_size_px"][0]
    off = _find_center_sigma(content)
    severity = _grade(off / width, _USABLE_CENTER, _CAUTION_CENTER, _POOR_CENTER)
    if severity is not None:
        found.append(
            Finding.of(
                "center-uncertain",
                f"the principal point is known to {off:.2g} px only, {100.0 * off / width:.2g} % "
                "of the image's width",
                severity=severity,
                sigma_px=off,
            )
        )
    return found


def _grade(value: float, usable: float, caution: float, poor: float) -> Severity | None:
    """Return the severity of a value by three limits; None below all."""
    if value > poor:
        return Severity.POOR
    if value > caution:
        return Severity.CAUTION
    return Severity.USABLE if value > usable else None


def _find_center_sigma(content: Mapping[str, Any]) -> float:
    """Return the larger standard deviation of the principal point, px."""
    return max(float(content["parameters"][name]["sigma"] or 0.0) for name in ("c_x", "c_y"))


def _examine_depths(depths: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return a finding if the camera makes depths at distances of the scene uncertain."""
    worst = max(depths, key=lambda entry: float(entry["sigma_percent"]), default=None)
    if worst is None:
        return []
    severity = _grade(worst["sigma_percent"] / 100.0, _USABLE_DEPTH, _CAUTION_DEPTH, _POOR_DEPTH)
    if severity is None:
        return []
    return [
        Finding.of(
            "depth-uncertain",
            f"the camera makes depths of {_length(worst['depth_mm'])} uncertain by "
            f"{worst['sigma_percent']:.2g} %, besides the noise of each pixel",
            severity=severity,
            depth_mm=worst["depth_mm"],
            sigma_percent=worst["sigma_percent"],
        )
    ]


def _examine_scale(entries: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return a finding if a residual scale is larger than noise explains."""
    sure = [
        entry
        for entry in entries
        if abs(entry["percent"]) > _SIGNIFICANT * (entry["sigma_percent"] or 0.0)
    ]
    worst = max(sure, key=lambda entry: abs(entry["percent"]), default=None)
    if worst is None or abs(worst["percent"]) <= _CAUTION_SCALE_PERCENT:
        return []
    larger = "larger" if worst["percent"] > 0.0 else "smaller"
    bad = abs(worst["percent"]) > _POOR_SCALE_PERCENT
    return [
        Finding.of(
            "residual-scale",
            f"micro images of lens type {worst['lens_type']} are {abs(worst['percent']):.1f} % "
            f"{larger} than the model says (u {worst['u_low']:.3g} to {worst['u_high']:.3g}), so "
            "alpha, beta and B are worse than their sigmas say",
            severity=Severity.POOR if bad else Severity.CAUTION,
            lens_type=worst["lens_type"],
            percent=worst["percent"],
        )
    ]


def _examine_halves(found: Mapping[str, Any] | None) -> list[Finding]:
    """Return a finding if parts of the recording disagree by more than the sigmas."""
    if found is None:
        return []
    if not found["splits"]:
        return [
            Finding.of(
                "not-cross-validated",
                "no two halves of the recording determine the camera on their own, so the sigmas "
                "are not cross-validated: more views and points would help",
            )
        ]
    name, factor = max(found["factors"].items(), key=lambda entry: float(entry[1]))
    if factor < _CAUTION_FACTOR:
        return []
    split = max(
        (split for split in found["splits"] if name in split["differences"]),
        key=lambda split: abs(
            split["differences"][name]["value"] / split["differences"][name]["sigma"]
        ),
    )
    entry = split["differences"][name]
    sigmas = abs(entry["value"] / entry["sigma"])
    return [
        Finding.of(
            "halves-disagree",
            f"parts of the recording disagree about the camera: {split['name']} differ in {name} "
            f"by {sigmas:.1f} sigma of their noise. The model does not describe this camera or "
            f"this recording fully; the sigmas are up to {factor:.1f} times wider for it",
            severity=Severity.POOR if factor > _POOR_FACTOR else Severity.CAUTION,
            split=split["name"],
            parameter=name,
            sigmas=sigmas,
            factor=factor,
        )
    ]


def _examine_counts(content: Mapping[str, Any]) -> list[Finding]:
    """Return findings about few views, missing frames and rejected observations."""
    found = []
    n_views = content["n_views"]
    if n_views < _USABLE_VIEWS:
        found.append(
            Finding.of(
                "few-views",
                f"it rests on {n_views} views only",
                severity=Severity.CAUTION if n_views < _CAUTION_VIEWS else Severity.USABLE,
                views=n_views,
            )
        )
    if "n_frames" in content:
        n_frames, n_usable = content["n_frames"], content["n_usable"]
        for code, count, what in (
            ("frames-unusable", n_frames - n_usable, "could not be used"),
            ("frames-not-registered", n_usable - content["n_registered"], "were not registered"),
        ):
            if count > 0:
                many = count > _CAUTION_MISSING * n_frames
                found.append(
                    Finding.of(
                        code,
                        f"{count} of {n_frames} frames {what}",
                        severity=Severity.CAUTION if many else Severity.USABLE,
                        count=count,
                    )
                )
    rejected = 1.0 - content["n_used"] / content["n_observations"]
    if rejected > _CAUTION_REJECTED:
        found.append(
            Finding.of(
                "many-rejected",
                f"{100.0 * rejected:.0f} % of the observations were rejected",
                share=rejected,
            )
        )
    return found


def _compare_with_nominal(content: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if f_L differs from the nominal focal length."""
    nominal = content.get("nominal_focal_length_mm")
    entry = content["parameters"]["f_L"]
    if nominal is None or abs(entry["value"] / nominal - 1.0) <= _NOMINAL_TOLERANCE:
        return []
    shown = format_value(entry["value"], entry["sigma"])
    return [
        Finding.of(
            "focal-length-differs",
            f"f_L came out as {shown} mm, and {nominal:g} mm was given. Is "
            f"that the focal length engraved on your lens, and is the pixel size "
            f"{content['pixel_size_um']:g} um? Check --focal-length-mm and --pixel-size-um",
            found_mm=entry["value"],
            nominal_mm=nominal,
        )
    ]


def _ask_engraving(content: Mapping[str, Any], codes: set[str]) -> str:
    """Return the question whether f_L is engraved on the lens, or an empty text.

    f_L is proportional to the pixel size, and the images fit equally well with a wrong one.
    """
    entry = content["parameters"]["f_L"]
    asked = "focal-length-differs" in codes  # among the reasons, with what was given
    if content["scale_source"] is None or not entry["sigma"] or asked:
        return ""
    return (
        f" f_L came out as {entry['value']:.3g} mm. Is that the focal length engraved on your "
        "lens? If not, check --pixel-size-um."
    )


def _relative_sigma(content: Mapping[str, Any], name: str) -> float:
    entry = content["parameters"][name]
    if entry["sigma"] is None or not entry["value"]:
        return math.inf
    return abs(float(entry["sigma"]) / float(entry["value"]))


def _length(value_mm: float) -> str:
    """Return a length in mm below a metre, in m from there on."""
    return f"{value_mm:.0f} mm" if value_mm < 999.5 else f"{value_mm / 1000.0:.3g} m"


def _percent(value: float) -> str:
    return f"{100.0 * value:.2g} %" if value > 0.0 else "what was given"
