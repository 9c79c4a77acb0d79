"""The verdict on a calibration, computed from findings and numbers and never from text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lifcal.diagnostics import Finding, Severity, keep_gravest

_POOR_SIGMA = {"F": 0.01, "B": 0.05}
"""Relative standard deviation from which a calibration is poor."""

_NOMINAL_TOLERANCE = 0.1
"""Relative tolerance of a nominal focal length: lenses differ from their engraving by up to 9 %."""

_CAUTION_SCALE_PERCENT = 1.0
_POOR_SCALE_PERCENT = 5.0
_SIGNIFICANT = 3.0
_CAUTION_REJECTED = 0.1
_CAUTION_CENTER, _POOR_CENTER = 0.01, 0.03
"""Standard deviation of the principal point, as a part of the image's width. Makers place a lens
within some per cent of the sensor's middle, so a calibration that knows less says nothing new."""
_CAUTION_FACTOR, _POOR_FACTOR = 2.0, 5.0
"""Factors on a sigma by cross-validation, from which the level is caution and poor. Noise alone
makes the largest factor of ten parameters 1.3 on
average, and more than 2 in fewer than one of a hundred recordings."""

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
    """Return the verdict: its level, one line of text, and the codes and texts of its reasons.

    The level is `poor` if a finding is poor, else `caution` if one calls for care, else `good`.
    docs/reference/findings.md says what each code means.

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
            "text": f"Good: F is known to {_percent(_relative_sigma(content, 'F'))}, B to "
            f"{_percent(_relative_sigma(content, 'B'))}; {content['n_views']} views, scale from "
            f"{content['scale_source']}, and the lens types agree.{question}",
            "codes": [],
            "reasons": [],
        }
    level = max((finding.severity for finding in reasons), key=lambda severity: severity.rank)
    head = "Do not trust it" if level is Severity.POOR else "Use with care"
    more = f" (and {len(reasons) - 1} more, below)" if len(reasons) > 1 else ""
    return {
        "level": level.value,
        "text": f"{head}: {reasons[0].text.rstrip('.?')}{more}.{question}",
        "codes": [finding.code for finding in reasons],
        "reasons": [finding.text for finding in reasons],
    }


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
        if relative > limit and (metric or name == "F"):
            found.append(
                Finding.of(
                    "parameter-uncertain",
                    f"{name} is known to {100.0 * relative:.1f} % only",
                    severity=Severity.POOR,
                    parameter=name,
                    relative_sigma=relative,
                )
            )
    width = content["image_size_px"][0]
    off = max(content["parameters"][name]["sigma"] or 0.0 for name in ("c_x", "c_y"))
    if off > _CAUTION_CENTER * width:
        found.append(
            Finding.of(
                "center-uncertain",
                f"the principal point is known to {off:.0f} px only, {100.0 * off / width:.1f} % "
                "of the image's width",
                severity=Severity.POOR if off > _POOR_CENTER * width else Severity.CAUTION,
                sigma_px=off,
            )
        )
    return found


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
    """Return findings about missing frames and rejected observations."""
    found = []
    n_frames, n_usable = content["n_frames"], content["n_usable"]
    if n_usable < n_frames:
        found.append(
            Finding.of(
                "frames-unusable",
                f"{n_frames - n_usable} of {n_frames} frames could not be used",
                count=n_frames - n_usable,
            )
        )
    missing = n_usable - content["n_registered"]
    if missing > 0:
        found.append(
            Finding.of(
                "frames-not-registered",
                f"{missing} of {n_frames} frames were not registered",
                count=missing,
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
    sigma = f" +- {entry['sigma']:.2g}" if entry["sigma"] else ""
    return [
        Finding.of(
            "focal-length-differs",
            f"f_L came out as {entry['value']:.4g}{sigma} mm, and {nominal:g} mm was given. Is "
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


def _percent(value: float) -> str:
    return f"{100.0 * value:.2g} %" if value > 0.0 else "what was given"
