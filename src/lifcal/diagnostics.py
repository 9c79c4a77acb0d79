"""Findings: what a stage noticed about its input or its result, as data.

A stage that sees something worth knowing makes a `Finding` with one of the codes of `KINDS` and
hands it on with its result. Findings travel to summary.json, the terminal and the report. A program
looks at their codes, severities and evidence; their text is for people only. The page
docs/reference/findings.md is made of `KINDS`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lifcal.errors import DataError, EstimationError
from lifcal.files import make_plain


class Severity(enum.StrEnum):
    """How much a finding reduces the trust in a result."""

    NOTE = "note"
    """Good to know; the result can be used as it is."""
    USABLE = "usable"
    """The result can be used; the remedy of the finding would make it better."""
    CAUTION = "caution"
    """The result can be used with care."""
    POOR = "poor"
    """The result must not be trusted."""

    @property
    def rank(self) -> int:
        """How grave it is: 0 for a note, 1 for usable, 2 for a caution, 3 for poor."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class FindingKind:
    """What a code stands for.

    Parameters
    ----------
    severities : tuple of Severity
        Severities that findings of this code can have; the first is the usual one.
    meaning : str
        What the stage noticed, in one sentence.
    remedy : str
        What the user can do about it.
    told_apart_by : str
        Name of the entry of `evidence` by which two findings of this code can be told apart. If it
        is empty, two findings of this code always say the same.
    """

    severities: tuple[Severity, ...]
    meaning: str
    remedy: str
    told_apart_by: str = ""


_NOTE, _CAUTION, _POOR = (Severity.NOTE,), (Severity.CAUTION,), (Severity.POOR,)
_USABLE = (Severity.USABLE,)
_CAUTION_OR_POOR = (Severity.CAUTION, Severity.POOR)
_USABLE_OR_CAUTION = (Severity.USABLE, Severity.CAUTION)
_ANY_BUT_NOTE = (Severity.CAUTION, Severity.USABLE, Severity.POOR)

KINDS: Mapping[str, FindingKind] = {
    # frames
    "frame-unusable": FindingKind(
        _NOTE,
        "A frame could not be used: it cannot be read, shows another grid, or has hardly any "
        "depth.",
        "Leave the frame out (--exclude NAME), or give the options that belong to it (grid, white "
        "image, Bayer pattern).",
        "frame",
    ),
    "frames-unusable": FindingKind(
        _USABLE_OR_CAUTION,
        "Some frames of the recording could not be used; it is a caution if more than a third "
        "could not.",
        "Look at the notes (code `frame-unusable`): each says why a frame could not be used.",
    ),
    "frames-not-registered": FindingKind(
        _USABLE_OR_CAUTION,
        "Structure from motion found no pose for some frames; it is a caution if it found none for "
        "more than a third.",
        "Move more slowly between frames, and keep texture in view.",
    ),
    "frames-thinned": FindingKind(
        _NOTE,
        "A video has many more frames than a calibration needs, so only those were used that "
        "differ enough from the frame before.",
        "Give --every to choose frames yourself.",
    ),
    "few-views": FindingKind(
        _USABLE_OR_CAUTION,
        "The calibration rests on few views; it is a caution if there are fewer than six.",
        "Record twenty to forty frames.",
    ),
    "bayer-missing": FindingKind(
        _CAUTION,
        "Neighboring pixels of a raw frame differ as those of a color mosaic do, and no color "
        "pattern was given.",
        "Give the color pattern by --bayer (rggb, grbg, gbrg or bggr), and calibrate again.",
    ),
    # several recordings
    "recording-left-out": FindingKind(
        _CAUTION,
        "The frames of one of several recordings have no poses, so the recording is left out.",
        "Record that scene again: with more texture, and the camera moving sideways.",
        "recording",
    ),
    "recording-in-parts": FindingKind(
        _NOTE,
        "A recording falls into parts that share no points. Each part is kept as a world of its "
        "own.",
        "Nothing. Frames between the parts would join them, which determines the camera better.",
        "recording",
    ),
    "world-left-out": FindingKind(
        _CAUTION,
        "One of several scenes has too few points that can be measured, and is left out.",
        "Record that scene again, with more texture or nearer things.",
        "world",
    ),
    "world-without-scale": FindingKind(
        _NOTE,
        "One of several scenes contains no source of scale. Its scale follows from the camera, "
        "which all scenes share.",
        "Nothing, if the source of scale is meant to be in another scene.",
        "world",
    ),
    "recordings-differ": FindingKind(
        _CAUTION,
        "The micro images of one of several recordings lie elsewhere than those of the first: the "
        "lens was focused anew, or lens or array moved.",
        "Calibrate the recordings apart, or record them anew without touching the camera.",
        "recording",
    ),
    "recordings-disagree": FindingKind(
        _POOR,
        "One of several scenes gives another camera than the others, far beyond the noise.",
        "Calibrate the recordings apart if the lens was focused anew or exchanged between them.",
    ),
    # grid
    "grid-refined": FindingKind(
        _NOTE,
        "A grid that was given as a start was moved to where the images show it.",
        "Nothing, if the move is a few pixels.",
    ),
    "grid-moved": FindingKind(
        _NOTE,
        "The micro images lie beside the grid: the lens was moved or focused anew after the grid "
        "was made. The grid follows the raws.",
        "With `lifcal depth`, calibrate again: the principal point moved too.",
    ),
    "grid-misfit": FindingKind(
        _CAUTION_OR_POOR,
        "In parts of the image the micro images lie beside the grid, by more than moving and "
        "stretching it can mend.",
        "Give a white image of this camera (--white), or a grid that was fitted to one "
        "(lifcal grid).",
    ),
    "grid-trend": FindingKind(
        _NOTE,
        "Micro-image centers deviate smoothly from the lattice and the bend that were fitted.",
        "Give a white image if there is none.",
    ),
    "lenses-dead": FindingKind(
        _NOTE,
        "More than a fifth of the micro lenses are dark or lie beside the lattice.",
        "Look at the picture that `lifcal grid` writes.",
    ),
    "image-saturated": FindingKind(
        _NOTE,
        "The image that the grid was fitted to is saturated, which changes the brightness inside "
        "micro images.",
        "Use a shorter exposure.",
    ),
    "lens-types-misfit": FindingKind(
        _NOTE,
        "The number of lens types that was asked for does not fit the layout of the grid.",
        "In Python, leave `n_types` out, or give the number of this camera.",
    ),
    "lens-types-by-sharpness": FindingKind(
        _NOTE,
        "The brightness does not tell the lens types apart; sharpness at different depths does.",
        "Nothing.",
    ),
    "discs-missing": FindingKind(
        _NOTE,
        "The brightness inside micro images is not that of two overlapping apertures, so their "
        "radii are not known.",
        "Give a white image that is neither saturated nor dark.",
    ),
    "discs-from-frames": FindingKind(
        _NOTE,
        "The radii of the apertures come from frames of the scene, which determine them less "
        "accurately than a white image.",
        "Give a white image.",
    ),
    "discs-uncertain": FindingKind(
        _NOTE,
        "The radii of the apertures are known to a few per cent only.",
        "Give a white image with little noise.",
    ),
    "white-aperture": FindingKind(
        _CAUTION,
        "The white image was recorded with another aperture than the raws, or stored with another "
        "gamma.",
        "Record a white image as the raws were recorded.",
    ),
    "vignetting-from-frames": FindingKind(
        _NOTE,
        "There is no white image and no model of the brightness inside micro images: the mean over "
        "the raws is used for flat-fielding.",
        "Give a white image.",
    ),
    "focal-planes-missing": FindingKind(
        _NOTE,
        "The virtual depths at which the lens types are in focus could not be found, so the shift "
        "of points that are out of focus is not corrected.",
        "Record more texture at several depths, or give a grid with focal planes.",
    ),
    # structure from motion
    "backdrop-resting": FindingKind(
        _NOTE,
        "A part of the image stands still while the scene moves, as a backdrop behind a turntable "
        "does. It is left out.",
        "Cover the backdrop, so that the image only shows what turns.",
    ),
    "matches-strange": FindingKind(
        _NOTE,
        "Some matches between frames do not follow the motion of most. They are left out.",
        "Record a scene in which nothing moves.",
    ),
    # scale
    "one-marker": FindingKind(
        _NOTE, "The scale rests on one marker.", "Add a second marker, which checks the first."
    ),
    "marker-missing": FindingKind(
        _NOTE,
        "A marker that belongs to a known distance was found in no frame. The distance is left "
        "out.",
        "Check the number and the dictionary of the marker, and keep it in view.",
    ),
    "distances-unused": FindingKind(
        _NOTE,
        "Some known distances have end points that are not part of the adjustment. They are left "
        "out.",
        "Pick points on textured, smooth surfaces.",
    ),
    "distances-left-out": FindingKind(
        _NOTE,
        "A few known distances contradict the others and are left out.",
        "Measure them again.",
    ),
    "distances-disagree": FindingKind(
        _POOR,
        "The known distances disagree by more than their sigmas and distort the reconstruction.",
        "Check the distances, their units and sigmas, and that marker sides are equal.",
    ),
    "scales-disagree": FindingKind(
        _POOR,
        "Known distances and known camera positions give different scales.",
        "Find out which of them is wrong.",
    ),
    "positions-unused": FindingKind(
        _NOTE,
        "Some known camera positions belong to frames that are not part of the adjustment.",
        "Nothing, if enough positions are left.",
    ),
    "positions-left-out": FindingKind(
        _NOTE,
        "Some known camera positions are far from those that the images give. They are left out.",
        "Check timestamps, units and axes of the trajectory.",
    ),
    "position-far": FindingKind(
        _NOTE,
        "A known camera position differs from the one that the images give by many of its sigmas.",
        "Check its timestamp, or give a larger sigma.",
    ),
    "no-scale": FindingKind(
        _CAUTION,
        "No scale was given: F, c, alpha and the distortion are known, but no length is metric.",
        "Give markers, a distance, a trajectory, or a known f_L and B.",
    ),
    "known-optics-fit": FindingKind(
        _NOTE, "The assumed f_L and B agree with the images.", "Nothing."
    ),
    "known-optics-misfit": FindingKind(
        _POOR,
        "The assumed f_L and B do not agree with the images.",
        "Give f_L and B of this camera, or another source of scale.",
    ),
    "micro-lens-opening": FindingKind(
        _POOR,
        "B and the pitch of the micro lenses would make an f-number that no micro lens has.",
        "Check the pixel size and the scale.",
    ),
    "focal-length-differs": FindingKind(
        _CAUTION,
        "f_L differs from the nominal focal length by more than 10 %.",
        "Check --focal-length-mm and --pixel-size-um.",
    ),
    # what goes into an adjustment
    "views-not-joined": FindingKind(
        _NOTE, "Some views share too few points with the others.", "Add views between them."
    ),
    "views-left-out": FindingKind(
        _NOTE,
        "Some views fit none of the others and are left out.",
        "Check their matches, and that they are of the same camera.",
    ),
    "points-left-out": FindingKind(
        _NOTE, "Some points fit in no view and are left out.", "Nothing, if many points are left."
    ),
    "points-unplaced": FindingKind(
        _NOTE,
        "Some points are seen in too few micro images, or no position fits their observations. "
        "They are left out.",
        "Nothing, if many points are left.",
    ),
    "points-behind": FindingKind(
        _NOTE,
        "Some points lie behind a camera in the start values and are left out.",
        "Nothing, if many points are left.",
    ),
    "observations-stray": FindingKind(
        _NOTE,
        "Some observations lie outside the micro image to which they are assigned. They are left "
        "out.",
        "Check the micro-image centers in the observations.",
    ),
    # geometry
    "turned-on-the-spot": FindingKind(
        _POOR,
        "The camera turned but hardly moved, so the images do not determine F.",
        "Move the camera, by a tenth of the distance to the scene or more.",
    ),
    "moved-along-axis": FindingKind(
        _CAUTION_OR_POOR,
        "The camera only moved along its optical axis, so the images hardly distinguish F from the "
        "distance of the scene.",
        "Move the camera sideways too, by a tenth of the distance or more, and turn it.",
    ),
    "one-depth": FindingKind(
        _POOR,
        "All points are at one depth, so the images do not determine alpha and beta separately.",
        "Show nearer and farther points, or move to and fro.",
    ),
    "not-rigid": FindingKind(
        _POOR,
        "No rigid scene fits the views, although points are at several depths.",
        "Record a scene in which nothing moves, with one camera and without focusing it anew.",
    ),
    "flat-scene": FindingKind(
        _CAUTION,
        "All points lie in one plane, so the calibration only depends on how much the angles and "
        "distances of the views differ.",
        "Put objects in front of the plane, or look at it from more directions.",
    ),
    "two-minima": FindingKind(
        _POOR,
        "Two cameras with different F fit the images equally well; the sigmas describe only the "
        "neighborhood of one of them.",
        "Record views from other directions and distances.",
    ),
    "several-cameras": FindingKind(
        _POOR,
        "Some views fit a camera of their own much better than the common one.",
        "Leave out views that were taken with another focus or another camera (--exclude NAMES).",
    ),
    # how the model fits
    "not-converged": FindingKind(
        _POOR, "The adjustment did not converge.", "Record more views and more texture."
    ),
    "not-settled": FindingKind(
        _NOTE,
        "The estimated noise and the set of outliers still changed when the adjustment stopped.",
        "Nothing, if the residuals look like noise.",
    ),
    "many-rejected": FindingKind(
        _CAUTION,
        "Many observations do not fit and are rejected.",
        "Check for motion in the scene, wrong matches, or a lens that was refocused.",
    ),
    "residuals-large": FindingKind(
        _CAUTION,
        "Residuals are larger than the noise, so noise does not explain all of them.",
        "Look at the residuals in the report: by view, lens type, depth and image position.",
    ),
    "residual-scale": FindingKind(
        _CAUTION_OR_POOR,
        "Micro images of a lens type at some depths are larger or smaller than the model says.",
        "Give a white image, and a grid with the right focal planes.",
    ),
    "halves-disagree": FindingKind(
        _CAUTION_OR_POOR,
        "Two parts of the recording give cameras that differ by more than noise explains. The "
        "sigmas were increased to include this difference.",
        "Check that focus and aperture were fixed; record more views.",
    ),
    "not-cross-validated": FindingKind(
        _CAUTION,
        "No two halves of the recording determine the camera separately, so the sigmas only "
        "include noise.",
        "Record more views and points.",
    ),
    # what is known badly
    "parameter-uncertain": FindingKind(
        _ANY_BUT_NOTE,
        "The standard deviation of f_L, b_L0, B or F is large.",
        "Add views that are turned about the optical axis and from other distances.",
        "parameter",
    ),
    "center-uncertain": FindingKind(
        _ANY_BUT_NOTE,
        "The standard deviation of the principal point is large.",
        "Add views that are turned about the optical axis (portrait and landscape).",
    ),
    "depth-uncertain": FindingKind(
        _ANY_BUT_NOTE,
        "The uncertainty of the camera makes depths at distances of this scene uncertain, in the "
        "same way in every frame.",
        "Record the scene from more distances, with things at all distances at which the camera "
        "will be used.",
    ),
    "correlated": FindingKind(
        _CAUTION,
        "Two parameters are strongly correlated, so the images hardly tell them apart.",
        "Record more different views, or give --known camera.json of an earlier calibration.",
        "parameters",
    ),
    # depth
    "frames-kept": FindingKind(
        _NOTE,
        "The folder holds frames of an earlier run that are not among the raws of this run.",
        "Choose another folder if they do not belong together.",
    ),
    "calibration-kept": FindingKind(
        _NOTE,
        "The folder held a finished calibration that was made with other settings. It was moved to "
        "a folder beside this one.",
        "Remove the old calibration if you do not need it any more.",
    ),
    "poses-surplus": FindingKind(
        _NOTE,
        "There are more poses than raws, although raws are numbered from 0.",
        "Give the whole recording and choose by --frames.",
    ),
    "frames-without-pose": FindingKind(
        _NOTE,
        "Some frames have no pose and are not in the fused cloud.",
        "Check --timestamps against the poses.",
    ),
    "depth-unit": FindingKind(
        _NOTE,
        "Depths are too large for the usual unit of 16-bit depth maps, so a coarser unit is used.",
        "Read the unit from camera.yaml or intrinsics.json.",
    ),
    # online
    "live-log-cut": FindingKind(
        _NOTE,
        "An online calibration continues after it was killed in the middle of a frame, and "
        "processes that frame again.",
        "Nothing. A frame that came from a camera or a pipe is lost.",
    ),
    "online-not-determined": FindingKind(
        _NOTE,
        "The keyframes of an online calibration do not determine the camera yet.",
        "Go on: move nearer and farther, sideways, and turn the camera.",
    ),
    "online-done": FindingKind(
        _NOTE,
        "All targets of an online calibration are met.",
        "Nothing: the recording can end.",
    ),
    "online-sigmas": FindingKind(
        _CAUTION,
        "The result comes from an online calibration, whose standard deviations are too small on "
        "some recordings. They were compared with errors on nine recordings of small cameras. On "
        "eight of them, all errors were within 2.2 standard deviations, but B was too large by one "
        "standard deviation on average. On the ninth, B was 1.6 % too large, which is 3.7 standard "
        "deviations.",
        "Calibrate the recorded frames with `lifcal calibrate` before you rely on the result.",
    ),
    "camera-changed": FindingKind(
        _CAUTION,
        "In the middle of an online calibration the camera changed: the lens was focused anew, or "
        "the array or the lens was moved.",
        "Go on, if this was on purpose: the parameters that changed are estimated anew.",
    ),
    "prior-contradicted": FindingKind(
        _CAUTION,
        "The frames of an online calibration contradict the earlier calibration that it was "
        "started with.",
        "If the lens was focused anew, calibrate with --known instead, or without --camera.",
    ),
}
"""All codes that a finding can have."""


@dataclass(frozen=True)
class Finding:
    """Something that a stage noticed.

    Parameters
    ----------
    code : str
        One of `KINDS`.
    severity : Severity
    text : str
        One line for people, with the values of this case. No program reads it.
    evidence : mapping
        Numbers, names and lists from which the finding was made.
    """

    code: str
    severity: Severity
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, code: str, text: str, *, severity: Severity | None = None, **evidence: Any
    ) -> Finding:
        """Make a finding, with the usual severity of its code unless another one is given.

        Raises
        ------
        KeyError
            If the code is not in `KINDS`.
        ValueError
            If findings of this code cannot have this severity.
        """
        allowed = KINDS[code].severities
        if severity is not None and severity not in allowed:
            raise ValueError(f"a finding {code!r} cannot be {severity.value!r}")
        return cls(code, severity or allowed[0], text, evidence)

    @property
    def about(self) -> tuple[str, Any]:
        """The code and the evidence that sets it apart; equal if two findings say the same."""
        kind = KINDS.get(self.code)
        return self.code, str(self.evidence.get(kind.told_apart_by)) if kind else None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "text": self.text,
            "evidence": make_plain(self.evidence),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Finding:
        """Read what `as_dict` returned.

        Raises
        ------
        DataError
            If it is not a finding.
        """
        try:
            return cls(
                str(content["code"]),
                Severity(content["severity"]),
                str(content["text"]),
                dict(content.get("evidence", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not a finding: {error}") from None


def keep_gravest(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted by severity, the gravest first, without those that repeat another.

    If several findings say the same (`Finding.about`), only the gravest is kept, or the first of
    them if they are equally grave. Findings of the same severity keep their order. All notes are
    kept.
    """
    chosen: dict[tuple[str, Any], Finding] = {}
    several: list[Finding] = []
    for finding in findings:
        if finding.severity is Severity.NOTE:
            several.append(finding)
            continue
        before = chosen.get(finding.about)
        if before is None or finding.severity.rank > before.severity.rank:
            chosen[finding.about] = finding
    return sorted([*chosen.values(), *several], key=lambda finding: -finding.severity.rank)


_GEOMETRIES = ("turned-on-the-spot", "moved-along-axis", "flat-scene")
"""Codes that explain why a recording does not determine a camera, the gravest first."""


def explain_failure(error: EstimationError, findings: Iterable[Finding]) -> EstimationError:
    """Return the error with a finding that explains it in front of its message.

    Only findings about the motion of the camera or the shape of the scene explain an error. If
    there is none, the error is returned unchanged.

    Parameters
    ----------
    error : EstimationError
    findings : iterable of Finding
        Findings that were made before the failure.
    """
    found = {finding.code: finding for finding in findings if finding.code in _GEOMETRIES}
    for code in _GEOMETRIES:
        if code in found and code not in error.evidence.get("explained_by", ()):
            return EstimationError(
                f"{found[code].text.rstrip('.')}. (What failed: {error})",
                stage=error.stage,
                evidence={**error.evidence, "explained_by": [code]},
            )
    return error


def format_kinds() -> str:
    """Return the table of all codes in Markdown, which docs/reference/findings.md contains."""
    lines = ["| code | severity | what it means | what to do |", "| --- | --- | --- | --- |"]
    for code, kind in sorted(KINDS.items()):
        severity = " or ".join(severity.value for severity in kind.severities)
        lines.append(f"| `{code}` | {severity} | {kind.meaning} | {kind.remedy} |")
    return "\n".join(lines) + "\n"
