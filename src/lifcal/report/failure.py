"""The page of a calibration that failed: why, what was seen, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from lifcal import __version__
from lifcal.diagnostics import KINDS, Finding, Severity
from lifcal.files import make_plain, write_text
from lifcal.report.verdict import judge_failure

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_MOST_NOTES = 40
"""Findings that the page lists: thousands of frames may be unusable for one reason."""
_NEEDS = (
    "Twenty to forty sharp frames of a scene that rests, with texture everywhere.",
    "A camera that moves sideways, by a tenth of the distance to the scene or more in all, and "
    "also turns about its axis and goes nearer and farther.",
    "Near and far things in every frame; the nearest at most two thirds as far as the farthest.",
    "Focus, zoom and aperture that stay as they are, and a white image that was taken with them.",
)
"""What every calibration needs; docs/how-to/record.md says more."""


def describe_failure(
    error: Exception,
    *,
    frames: Sequence[str],
    done: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    pictures: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of summary.json for a calibration that failed.

    Parameters
    ----------
    error : Exception
        What ended it. The stage and the evidence of an `EstimationError` are kept.
    frames, done : sequence of str
        Names of all frames, and of those that were focused.
    findings : sequence of Finding
        What was noticed before.
    pictures : mapping of str to str, optional
        Title and JPEG or PNG in base64.
    provenance : mapping, optional
        Files and settings.
    """
    ranked = sorted(findings, key=lambda finding: -finding.severity.rank)
    verdict = judge_failure(str(error))
    remedies = [
        KINDS[finding.code].remedy
        for finding in ranked
        if finding.code in KINDS and finding.severity is not Severity.NOTE
    ]
    verdict["codes"] = list(error_codes(error))
    remedies = [*(KINDS[code].remedy for code in verdict["codes"] if code in KINDS), *remedies]
    verdict["help"] = list(dict.fromkeys(remedies))
    plain: dict[str, Any] = make_plain(
        {
            "format": "lifcal-calibration",
            "format_version": "1.0",
            "lifcal_version": __version__,
            "verdict": verdict,
            "stage": getattr(error, "stage", None),
            "evidence": dict(getattr(error, "evidence", {})),
            "n_frames": len(frames),
            "n_focused": len(done),
            "findings": [finding.as_dict() for finding in ranked],
            "pictures": dict(pictures or {}),
            "provenance": dict(provenance or {}),
        }
    )
    return plain


def error_codes(error: Exception) -> tuple[str, ...]:
    """Return the codes of the findings that explain an error."""
    return tuple(getattr(error, "evidence", {}).get("explained_by", ()))


def write_failure_page(summary: Mapping[str, Any], path: Path) -> None:
    """Write the page that `render_failure` makes, whole or not at all."""
    write_text(path, render_failure(summary))


def render_failure(summary: Mapping[str, Any]) -> str:
    """Return one HTML page that loads nothing from anywhere.

    Parameters
    ----------
    summary : mapping
        What `describe_failure` returns.
    """
    verdict = summary["verdict"]
    seen = f"{summary['n_focused']} of {summary['n_frames']} frames were focused."
    if summary.get("stage"):
        seen += f" It ended at this stage: {summary['stage']}."
    noticed = [str(entry["text"]) for entry in summary["findings"]]
    more = [f"and {len(noticed) - _MOST_NOTES} more"] if len(noticed) > _MOST_NOTES else []
    listed = _list([*noticed[:_MOST_NOTES], *more]) if noticed else "<p>Nothing else.</p>"
    figures = []
    for title, content in summary["pictures"].items():
        if isinstance(content, str) and _BASE64.fullmatch(content):
            kind = "jpeg" if content.startswith("/9j/") else "png"
            image = f'<img src="data:image/{kind};base64,{content}" alt="{escape(str(title))}">'
            caption = f"<figcaption>{escape(str(title))}</figcaption>"
            figures.append(f"<figure>{caption}{image}</figure>")
    pictures = (
        f'<section><h2>What the camera saw</h2><div class="grid">{"".join(figures)}</div>'
        '<p class="how">A focused image should be sharp and show texture everywhere, and a depth '
        "map should be smooth on surfaces. Neighboring frames should show most of the same things "
        "from other places.</p></section>"
        if figures
        else ""
    )
    made = "".join(
        f"<tr><td>{escape(str(key))}</td><td>{escape(str(value))}</td></tr>"
        for key, value in summary["provenance"].items()
    )
    css = files("lifcal.report").joinpath("page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><title>lifcal: no calibration</title>'
        f"<style>{css}</style></head><body><main><h1>No calibration</h1>"
        f'<div class="verdict poor"><strong>{escape(str(verdict["text"]))}</strong></div>'
        f'<section><h2>What to do</h2><div class="card">{_list(verdict["help"])}'
        f"<h3>What a calibration needs</h3>{_list(_NEEDS)}"
        '<p class="how">docs/how-to/record.md says how to record, and '
        "docs/how-to/troubleshooting.md explains the messages.</p></div></section>"
        f'<section><h2>What was noticed</h2><div class="card"><p>{escape(seen)}</p>{listed}</div>'
        f"</section>{pictures}"
        f'<section><h2>Where it comes from</h2><div class="card"><table class="made">{made}'
        "</table></div></section>"
        f"<footer>lifcal {escape(str(summary['lifcal_version']))}</footer></main></body></html>\n"
    )


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""
