"""The report: one HTML page that needs nothing else, made from the content of summary.json."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.camera import NO_SCALE, PARAMETERS
from lifcal.camera.parameters import format_unit, format_value
from lifcal.files import write_text
from lifcal.imaging.preview import colorize_depth
from lifcal.report.figures import Mark, draw_bars, draw_map, draw_series, round_step

_FORMS = (
    ("What depth needs: the pinhole form", ("F", "alpha", "beta", "c_x", "c_y")),
    ("The same camera in the physical form", ("f_L", "b_L0", "B")),
)
_LEVELS = ("good", "usable", "caution", "poor")
"""Levels of a verdict that have a color of their own."""
_PLANE = "inverse_plane_"
_RAWS = "RAWS"
"""Stands for the raws in a command to copy."""
_PICTURES = {
    "focused": (
        "Totally focused image",
        "Made from one raw image: every part is sharp where depth was found. Blocks or doubled "
        "edges mean wrong virtual depth.",
    ),
    "depth": (
        "Depth map in mm",
        "Of the same frame, red near to blue far. It should be smooth on surfaces and step at the "
        "edges of things. Gray is unknown: there is no texture.",
    ),
    "relative depth": (
        "Depth map, no scale",
        "Of the same frame, red near to blue far; 1 is the median depth. It should be smooth on "
        "surfaces and step at the edges of things. Gray is unknown: there is no texture.",
    ),
}
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_MAX_ROWS = 20
_RIG_COLORS = 32


def write_report(summary: Mapping[str, Any], path: str | Path) -> None:
    """Write the page that `render_report` makes, whole or not at all."""
    write_text(Path(path), render_report(summary))


def render_report(summary: Mapping[str, Any]) -> str:
    """Return the report as one HTML page that loads nothing from anywhere.

    Parameters
    ----------
    summary : mapping
        Content of summary.json (`build_statistics`). Missing parts are left out.
    """
    sections = [
        ("Parameters", _parameters(summary)),
        ("The rig", _rig(summary)),
        ("What the camera saw", _pictures(summary)),
        ("Does the model fit?", _fit(summary)),
        ("Is the data enough?", _coverage(summary)),
        ("What is assumed", _assumptions(summary)),
        ("Where it comes from", _provenance(summary)),
    ]
    body = "".join(
        f"<section><h2>{title}</h2>{content}</section>" for title, content in sections if content
    )
    rig = summary.get("rig") or {"cameras": [], "points": []}
    near_to_far = colorize_depth(np.linspace(0.0, 1.0, _RIG_COLORS)[None], 0.0, 1.0)[0]
    rig = {**rig, "colors": near_to_far.tolist()}
    data = json.dumps(rig, separators=(",", ":")).replace("<", "\\u003c")
    room = files("lifcal.report")
    css = room.joinpath("page.css").read_text(encoding="utf-8")
    script = room.joinpath("viewer.js").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><title>lifcal calibration report</title>'
        f"<style>{css}</style></head><body><main>{_head(summary)}{body}"
        f"<footer>lifcal {_text(summary.get('lifcal_version', ''))}. Every number and figure is "
        "explained in docs/how-to/reading-the-report.md.</footer></main>"
        f'<script type="application/json" id="rig-data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


# Sections


def _head(summary: Mapping[str, Any]) -> str:
    """Return the first screen: verdict, what to expect, and where it comes from."""
    verdict = summary.get("verdict") or {}
    level = verdict.get("level")
    level = level if level in _LEVELS else "caution"
    reasons = verdict.get("reasons") or []
    listed = _list(reasons[1:]) if len(reasons) > 1 else ""  # the first is in the text
    cards = [_expected_depth(summary), _expected_camera(summary), _run(summary)]
    filled = "".join(f'<div class="card">{card}</div>' for card in cards if card)
    return (
        f'<h1>Calibration report</h1><div class="verdict {level}">'
        f"<strong>{_text(verdict.get('text', 'No verdict.'))}</strong>{listed}</div>"
        + (f'<div class="first">{filled}</div>' if filled else "")
        + _next(summary)
    )


def _expected_depth(summary: Mapping[str, Any]) -> str:
    expected = summary.get("expected")
    if not expected:
        return ""
    title = "<h3>Error of depth to expect (± σ)</h3>"
    if not expected.get("metric"):
        return (
            f"{title}<p><strong>Not metric.</strong> No length is known, so depth has no unit and "
            "no error in mm. Give one known distance (lifcal pick), markers, or f_L and B.</p>"
        )
    rows: list[tuple[str, ...]] = []
    for entry in expected.get("depth") or ():
        if entry["inside"] and entry.get("sigma_mm") is not None:
            total = f"{_length(entry['sigma_mm'])} ({_percent(entry['sigma_mm'], entry['z_mm'])})"
            parts = (_length(entry["sigma_pixel_mm"]), _length(entry["sigma_calibration_mm"]))
        else:
            total, parts = "outside the range", ("", "")
        rows.append((_length(entry["z_mm"]).replace(" ", "\N{NO-BREAK SPACE}"), total, *parts))
    head: tuple[str, ...] = ("at", "one pixel", "its noise", "calibration")
    if all(entry.get("sigma_pixel_mm") is None for entry in expected.get("depth") or ()):
        head = ("at", "the calibration's part")
        rows = [row[:2] for row in rows]
    return (
        f"{title}{_table(head, rows)}"
        '<p class="how">The errors are those of a pixel with usual texture in the middle of the '
        "image. All pixels share the part of the calibration, so averaging does not reduce it.</p>"
    )


def _expected_camera(summary: Mapping[str, Any]) -> str:
    expected = summary.get("expected") or {}
    rows = []
    if expected.get("field_of_view_deg"):
        wide, high, diagonal = (
            "unknown" if angle is None else f"{angle:.1f}°"
            for angle in expected["field_of_view_deg"]
        )
        rows.append(("Field of view", f"{wide} × {high}, diagonal {diagonal}"))
    if expected.get("working_range"):
        near, far = expected["working_range"]
        shown = f"{_length(near)} to {_length(far)}" if expected.get("metric") else "not metric"
        rows.append(("Working range", shown))
    if "distortion_corner_px" in expected:
        moved = expected["distortion_corner_px"]
        shown = "unknown: the model has no inverse there" if moved is None else f"{moved:.1f} px"
        rows.append(("Distortion at the corner", shown))
    if summary.get("rms_px") is not None:
        rows.append(("Residual", f"{summary['rms_px']:.3f} px rms per axis"))
    if "n_used" in summary:
        rows.append(
            (
                "Observations",
                f"{summary['n_used']:,} of {summary['n_observations']:,}, of "
                f"{summary['n_points']:,} points in {summary['n_views']:,} views",
            )
        )
    rows.append(("Scale from", summary.get("scale_source") or "nothing: not metric"))
    return f"<h3>The camera</h3>{_table((), rows, numbers=False)}"


def _run(summary: Mapping[str, Any]) -> str:
    made = summary.get("provenance") or {}
    rows = [(name.capitalize(), made[name]) for name in ("date", "folder") if made.get(name)]
    if not rows and not made.get("command"):
        return ""
    command = made.get("command")
    told = _commands([str(command)]) if command else '<p class="how">Called from Python.</p>'
    return f'<h3>This run</h3><div class="made">{_table((), rows, numbers=False)}</div>{told}'


def _next(summary: Mapping[str, Any]) -> str:
    """Return the commands that come next, to copy."""
    made = summary.get("provenance") or {}
    if not made.get("folder"):
        return ""
    folder = Path(str(made["folder"]))
    first = made.get("first frame")
    raws = shlex.quote(str(Path(str(first)).parent)) if first else _RAWS
    place = shlex.quote(str(folder))
    camera = shlex.quote(str(folder / "camera.json"))
    white = made.get("white image")
    flat = f"--white {shlex.quote(str(white))} " if white else ""
    commands = [
        f"lifcal depth {raws} --camera {camera} --poses {shlex.quote(str(folder / 'poses.txt'))} "
        f"{flat}-o rgbd",
        "lifcal view rgbd",
        f"lifcal export {place} --to colmap -o colmap",
    ]
    if summary.get("scale_source") is None:
        commands = [f"lifcal pick {place}", *commands[1:]]
        commands[1:2] = []
    return f'<div class="card next"><h3>Next</h3>{_commands(commands)}</div>'


def _commands(commands: Iterable[str]) -> str:
    """Return commands with buttons that copy them."""
    return "".join(
        f'<div class="command"><code>{_text(command)}</code><button type="button">copy</button>'
        "</div>"
        for command in commands
    )


def _parameters(summary: Mapping[str, Any]) -> str:
    parameters = summary.get("parameters") or {}
    if not parameters:
        return ""
    known = {name for _, names in _FORMS for name in names}
    rest = [name for name in parameters if name not in known]
    cards = []
    for title, names in (*_FORMS, ("Distortion, tilt and focus term", rest)):
        rows = [_parameter(summary, name) for name in names if name in parameters]
        if rows:
            head = '<tr><th>parameter</th><th class="number">value ± σ</th>'
            head += '<th class="number">σ / value</th></tr>'
            cards.append(
                f'<div class="card"><h3>{title}</h3><table>{head}{"".join(rows)}</table></div>'
            )
        elif names is rest:
            cards.append(f'<div class="card"><h3>{title}</h3><p>None was estimated.</p></div>')
    *forms, last = cards
    last += (
        '<p class="how">σ is one standard deviation: from the noise of the observations, from what '
        "those of one point have in common, and from what is assumed below. Both forms are the "
        "same camera; metric depth is z = β / (u − α).</p>"
    )
    return _grid([f'<div class="stack">{part}</div>' for part in ("".join(forms), last)])


def _parameter(summary: Mapping[str, Any], name: str) -> str:
    entry = summary["parameters"][name]
    value, sigma = entry.get("value"), entry.get("sigma")
    unit = (summary.get("units") or {}).get(name, "")
    kind = PARAMETERS.get(name)
    about = kind.meaning if kind is not None else ""
    if name.startswith(_PLANE) and value:
        value, sigma = 1.0 / value, None if sigma is None else sigma / value**2
        about = f"virtual depth at which lens type {name.removeprefix(_PLANE)} is in focus"
        about += _say_focus(summary, value)
    elif re.fullmatch("k[0-9]", name):
        about = "radial distortion"
    elif re.fullmatch("p[0-9]", name):
        about = "tangential distortion"
    if kind is not None and kind.needs_scale and summary.get("scale_source") is None:
        shown, relative = NO_SCALE, ""
    else:
        held = " (held)" if sigma == 0.0 else ""
        shown = f"{format_value(value, sigma)} {format_unit(unit)}".strip() + held
        lasting = bool(sigma and value) and not name.startswith("c_")  # c has no natural zero
        relative = f"{100.0 * sigma / abs(value):.2g} %" if lasting else ""
        if lasting and sigma > abs(value):
            relative = "may be 0"
    return (
        f"<tr><td>{_text(_name(name))}<small>{_text(about)}</small></td>"
        f'<td class="number">{_text(shown)}</td><td class="number">{relative}</td></tr>'
    )


def _name(name: str) -> str:
    """Return what people call a parameter."""
    if name.startswith(_PLANE):
        return f"focal plane {name.removeprefix(_PLANE)}"
    return name


def _say_focus(summary: Mapping[str, Any], u: float) -> str:
    """Return in words at which distance a virtual depth is."""
    parameters = summary["parameters"]
    alpha, beta = (parameters.get(name, {}).get("value") for name in ("alpha", "beta"))
    if summary.get("scale_source") is None or alpha is None or beta is None:
        return ""
    return f", {_length(beta / (u - alpha))} away" if u > alpha else ", beyond infinity"


def _rig(summary: Mapping[str, Any]) -> str:
    rig = summary.get("rig") or {}
    if not rig.get("cameras"):
        return ""
    return (
        "<figure><figcaption>Cameras and points</figcaption>"
        '<canvas id="rig" tabindex="0" aria-label="Cameras and points in 3D"></canvas>'
        '<p class="how">Drag (two fingers on a phone) to turn, wheel to zoom, double-click to '
        "reset; point at a camera for "
        f"its name. {len(rig['cameras'])} cameras (the first with a red axis), joined in order, "
        f"and {len(rig['points'])} points, red near to blue far as in all pictures of depth. The "
        "path of a video should be smooth, and surfaces should look like surfaces; a camera far "
        "from the others is a wrong pose.</p>"
        "</figure>"
    )


def _pictures(summary: Mapping[str, Any]) -> str:
    figures = []
    for key, content in (summary.get("pictures") or {}).items():
        if not isinstance(content, str) or not _BASE64.fullmatch(content):
            continue
        kind = "jpeg" if content.startswith("/9j/") else "png"
        title, how = _PICTURES.get(key, (str(key), ""))
        image = f'<img src="data:image/{kind};base64,{content}" alt="{_text(title)}">'
        figures.append(_figure(_text(title), image, how))
    return _grid(figures)


def _coverage(summary: Mapping[str, Any]) -> str:
    coverage = summary.get("coverage")
    if not coverage:
        return ""
    unit = (summary.get("rig") or {}).get("unit", "mm")
    angle, views = coverage["angle_deg"], coverage["views_per_point"]
    image = coverage["image"]
    figures = [
        _figure(
            "Observations over the image",
            draw_map(image["counts"], summary["image_size_px"], "observations per cell"),
            f"Corners and edges fix the distortion. {100.0 * image['empty_share']:.0f} % of the "
            "cells are empty; if corners are, record frames that show texture there.",
        ),
        _figure(
            "Observations over virtual depth",
            _histogram(coverage["virtual_depth"], "virtual depth u", "observations"),
            "A wide range tells alpha from beta. The end bins hold what is beyond them.",
        ),
        _figure(
            "Observations over depth",
            _histogram(coverage["depth"], f"depth z in {unit}", "observations"),
            "Depths that the camera will be used at should be here. The end bins hold what is "
            "beyond them.",
        ),
        _figure(
            "Views of a point",
            _histogram(views, "views", "points"),
            f"Median {_number(views['median'])}. Points in two views only hold the shape weakly; "
            "six or more is comfortable.",
        ),
        _figure(
            "Largest angle between two views of a point",
            _histogram(angle, "angle in degrees", "points"),
            f"Median {_number(angle['median'])}°, largest {_number(angle['largest'])}°. Larger "
            "angles fix depth and F better; below 5° move the camera more.",
        ),
    ]
    findings = summary.get("findings") or []
    weak = [str(entry["text"]) for entry in findings if entry["severity"] != "note"]
    notes = [str(entry["text"]) for entry in findings if entry["severity"] == "note"]
    words = _list(weak) if weak else "<p>Nothing is weak: no parameter is known badly.</p>"
    if "findings" not in summary:
        words = "<p>This summary has no findings: a version before them wrote it.</p>"
    words = f'<div class="card"><h3>Weak points</h3>{words}'
    words += (f"<h3>Notes</h3>{_list(notes)}" if notes else "") + _frames(summary) + "</div>"
    return _grid([*figures, words])


def _frames(summary: Mapping[str, Any]) -> str:
    if "n_frames" not in summary:
        return ""
    text = f"{summary['n_registered']} of {summary['n_frames']} frames were registered."
    without = [entry for entry in summary.get("frames") or () if not entry["registered"]]
    for title, usable in (("Could not be used", False), ("Not registered", True)):
        names = [str(entry["name"]) for entry in without if entry.get("usable", True) == usable]
        if names:
            more = ", ..." if len(names) > _MAX_ROWS else ""
            text += f" {title}: {', '.join(names[:_MAX_ROWS])}{more}."
    return f"<h3>Frames</h3><p>{_text(text)}</p>{_worlds(summary)}"


def _worlds(summary: Mapping[str, Any]) -> str:
    """Return the scenes of a calibration from several recordings; nothing if there is one."""
    worlds = summary.get("worlds") or ()
    if len(worlds) < 2:
        return ""
    lines = [
        f"World {entry['number']}: {entry.get('recording', '')}, {len(entry['frames'])} frames, "
        f"{entry['n_points']} points, scale from {entry['scale'] or 'nothing'}; poses in "
        f"{entry['poses']}, points in {entry['points']}."
        for entry in worlds[:_MAX_ROWS]
    ]
    return (
        "<h3>Worlds</h3><p>Scenes that share the camera, but no point. Each has a frame of its "
        f"own; the rig shows the first.</p>{_list(lines)}"
    )


def _fit(summary: Mapping[str, Any]) -> str:
    residuals = summary.get("residuals")
    if not residuals:
        return ""
    unit = (summary.get("rig") or {}).get("unit", "mm")
    spread = residuals["distribution"]
    views = residuals["by_view"]
    outward = "The mark is the mean residual outward from the micro-image center, ± σ"
    figures = [
        _figure(
            "Residual scale by lens type and depth",
            _types_and_depth(residuals["by_lens_type_and_depth"]),
            "Look here before trusting B. It is how much larger micro images are than the model "
            "says. All types should lie in the green band (± 1 %) within their error bars (± σ); "
            "types that differ mean focus-vignetting, and B is then off by more than its sigma.",
        ),
        _types(residuals["by_lens_type"]),
        _residual_map(residuals["image"], summary["image_size_px"]),
        _figure(
            "Distribution of residuals",
            draw_bars(
                spread["edges"],
                spread["counts"],
                "residual in standard deviations",
                "residuals",
                line=spread["expected"],
            ),
            "Bars are found, the line is a normal distribution. "
            f"{100.0 * spread['share_beyond_3']:.2f} % are beyond 3 σ "
            f"({100.0 * spread['expected_beyond_3']:.2f} % expected), {spread['n_beyond']} beyond "
            "the plot. Long tails are outliers, which the robust loss and rejection deal with.",
        ),
        _figure(
            "Residuals by radius in the micro image",
            _binned(residuals["by_radius"], "distance from the micro-image center in px"),
            f"Bars are rms per axis. {outward}. A mark that moves away from zero toward the rim "
            "is a magnification that the model lacks.",
        ),
        _figure(
            "Residuals by depth",
            _binned(residuals["by_depth"], f"depth z in {unit}"),
            f"Bars are rms per axis, each of as many observations. {outward}. Larger residuals "
            "near or far mean defocus.",
        ),
        _figure(
            "Residuals by view",
            draw_bars(
                [i - 0.5 for i in range(len(views) + 1)],
                [entry["rms_px"] for entry in views],
                "view, in order",
                "rms residual in px",
                titles=[
                    f"{entry['name']}: {_number(entry['rms_px'])} px, {entry['n']} used, "
                    f"{entry['n_rejected']} rejected"
                    for entry in views
                ],
            ),
            "All views should be alike; point at a bar for its frame. One that stands out is "
            "blurred or has a wrong pose: leave it out by --exclude and its name.",
        ),
    ]
    figures.append(_halves(summary.get("cross_validation")))
    return _grid([*figures, _distances(summary.get("distances") or [])])


def _types_and_depth(entries: Sequence[Mapping[str, Any]]) -> str:
    types = sorted({entry["lens_type"] for entry in entries})
    widths = [entry["u_high"] - entry["u_low"] for entry in entries]
    series = []
    for kind in types:
        # side by side, or error bars would hide each other
        shift = 0.06 * min(widths, default=0.0) * (kind - (len(types) - 1) / 2)
        marks = [
            Mark(
                (entry["u_low"] + entry["u_high"]) / 2 + shift,
                entry["percent"],
                entry["sigma_percent"],
                f"type {kind}, u {entry['u_low']:.3g} to {entry['u_high']:.3g}, {entry['n']} "
                f"observations: {entry['percent']:+.2f} ± {entry['sigma_percent']:.2f} %",
            )
            for entry in entries
            if entry["lens_type"] == kind and None not in (entry["percent"], entry["sigma_percent"])
        ]
        series.append((f"type {kind}", marks))
    return draw_series(series, "virtual depth u", "residual scale in %", 1.0)


def _types(entries: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            entry["lens_type"],
            f"{entry['n']:,}",
            f"{entry['n_rejected']:,}",
            _number(entry["rms_px"]),
            f"{_fixed(entry['mean_dx_px'], 3)}, {_fixed(entry['mean_dy_px'], 3)}",
            f"{_fixed(entry['scale_percent'], 2)} ± {_number(entry['sigma_scale_percent'], 2)}",
        )
        for entry in entries
    ]
    head = ("type", "used", "rejected", "rms px", "mean x, y px", "scale %")
    return _figure(
        "Residuals by lens type",
        _table(head, rows),
        "Means should be near zero, rms and the share rejected alike. Scale is that of the figure "
        "before, over all depths.",
    )


def _residual_map(image: Mapping[str, Any], size_px: Sequence[int]) -> str:
    width, height = size_px
    n_rows, n_columns = len(image["n"]), len(image["n"][0])
    arrows = []
    for i in range(n_rows):
        for j in range(n_columns):
            dx, dy = image["mean_dx_px"][i][j], image["mean_dy_px"][i][j]
            if dx is not None and dy is not None and image["n"][i][j] >= 5:
                place = ((j + 0.5) * width / n_columns, (i + 0.5) * height / n_rows)
                arrows.append((*place, dx, dy))
    lengths = sorted(math.hypot(dx, dy) for _, _, dx, dy in arrows)
    longest = lengths[int(0.9 * (len(lengths) - 1))] if lengths else 0.0
    unit = round_step(longest) if longest > 0.0 else 1.0
    return _figure(
        "Residuals over the image",
        draw_map(image["rms_px"], size_px, "rms residual in px", arrows=arrows, unit_px=unit),
        "Color is the rms per axis, arrows are the mean of each cell, enlarged (see the one beside "
        "the color bar). Arrows without order are noise; a swirl or a flow outward is distortion "
        "that the model lacks.",
    )


def _binned(entries: Sequence[Mapping[str, Any]], x_label: str) -> str:
    edges = [entries[0]["low"], *(entry["high"] for entry in entries)]
    marks = [
        Mark(
            (entry["low"] + entry["high"]) / 2,
            entry["mean_radial_px"],
            entry["sigma_mean_px"] or 0.0,
        )
        for entry in entries
        if entry["mean_radial_px"] is not None
    ]
    titles = [
        f"{entry['low']:.4g} to {entry['high']:.4g}: {_number(entry['rms_px'])} px of "
        f"{entry['n']:,} observations"
        for entry in entries
    ]
    heights = [entry["rms_px"] for entry in entries]
    return draw_bars(edges, heights, x_label, "residual in px", titles=titles, marks=marks)


def _halves(found: Mapping[str, Any] | None) -> str:
    """Return the table of disagreements between halves of the recording, in sigmas."""
    if not found or not found["splits"]:
        return ""
    names = [
        name
        for name in found["factors"]
        if any(name in split["differences"] for split in found["splits"])
    ]

    def in_sigmas(split: Mapping[str, Any], name: str) -> str:
        entry = split["differences"].get(name)
        return "" if entry is None else f"{entry['value'] / entry['sigma']:+.1f}"

    rows = [
        (
            split["name"],
            *(in_sigmas(split, name) for name in names),
            f"{split['reprojection_px']:.2f}",
        )
        for split in found["splits"]
    ]
    rows.append(("factor on sigma", *(f"{found['factors'][name]:.2f}" for name in names), ""))
    return _figure(
        "Do halves of the recording agree?",
        _table(("halves", *map(_name, names), "rays, px"), rows),
        "Each half was solved on its own. Entries are the difference of the two cameras in "
        "standard deviations of their noise: mostly within ± 2 if the model describes the camera. "
        "What is beyond that widens the sigmas by the factors in the last row. The last column is "
        "the rms distance of the two cameras' images of the same rays.",
    )


def _distances(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return ""
    rows = [
        (
            entry["what"],
            f"{entry['mm']:.4f} ± {entry['sigma']:.2g}",
            _number(entry["found_mm"], 6),
            _fixed(_compare_lengths(entry["found_mm"], entry["mm"]), 2),
        )
        for entry in entries[:_MAX_ROWS]
    ]
    more = f" The first {_MAX_ROWS} of {len(entries)}." if len(entries) > _MAX_ROWS else ""
    return _figure(
        "Known distances",
        _table(("points", "given, mm", "found, mm", "difference, %"), rows),
        "Single ones scatter by how well the points were measured, which short distances show "
        "most. A difference that most of them share means a wrong length." + more,
    )


def _assumptions(summary: Mapping[str, Any]) -> str:
    entries = summary.get("assumptions") or []
    if not entries:
        return ""
    rows = "".join(
        f"<dt>{_text(str(entry['what']).capitalize())}</dt><dd>{_text(entry['text'])}</dd>"
        for entry in entries
    )
    return f'<div class="card"><dl>{rows}</dl></div>'


def _provenance(summary: Mapping[str, Any]) -> str:
    cards = []
    shown = ("date", "folder", "command")  # on the first screen
    made = {
        key: value for key, value in (summary.get("provenance") or {}).items() if key not in shown
    }
    rows = list(_flatten(made))
    if rows:
        cards.append(
            f'<div class="card made"><h3>Made from</h3>{_table((), rows, numbers=False)}</div>'
        )
    seconds = summary.get("seconds") or {}
    if seconds:
        total = sum(seconds.values()) or 1.0
        bars = "".join(
            f'<tr><td>{_text(stage)}</td><td class="number">{value:.1f} s</td>'
            f'<td class="bar"><div style="width:{100.0 * value / total:.1f}%"></div></td></tr>'
            for stage, value in seconds.items()
        )
        cards.append(
            f'<div class="card"><h3>Time by stage: {total:.1f} s</h3><table>{bars}</table></div>'
        )
    stages = summary.get("stages") or []
    if stages:
        solves = [
            (entry["name"], entry["iterations"], f"{entry['seconds']:.2f}", entry["reason"])
            for entry in stages
        ]
        table = _table(("solve", "iterations", "s", "stopped because"), solves, numbers=False)
        cards.append(f'<div class="card"><h3>Solves of the adjustment</h3>{table}</div>')
    return _grid(cards)


# Parts


def _text(value: object) -> str:
    return escape(str(value))


def _compare_lengths(found_mm: float | None, given_mm: float) -> float | None:
    """Return by how many per cent a length differs from the one that was given."""
    return None if found_mm is None else 100.0 * (found_mm / given_mm - 1.0)


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def _length(value: float | None) -> str:
    """Return a length in mm with two digits at least, or in m with three from a metre on."""
    if value is None:
        return "–"
    if abs(value) >= 1000.0:
        return f"{value / 1000.0:.3g} m"
    digits = 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{min(max(digits, 0), 6)}f} mm"


def _percent(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.2g} %"


def _fixed(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{value:+.{decimals}f}"


def _list(items: Iterable[object]) -> str:
    return "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>"


def _grid(parts: Sequence[str]) -> str:
    content = "".join(parts)
    return f'<div class="grid">{content}</div>' if content else ""


def _figure(title: str, content: str, how: str) -> str:
    return (
        f'<figure><figcaption>{title}</figcaption>{content}<p class="how">{_text(how)}</p></figure>'
    )


def _histogram(bins: Mapping[str, Any], x_label: str, y_label: str) -> str:
    return draw_bars(bins["edges"], bins["counts"], x_label, y_label)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = True) -> str:
    """Return a table; with `numbers`, all but the first column are aligned to the right."""

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = [' class="number"' if numbers and i else "" for i in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    top = f"<tr>{cells('th', head)}</tr>" if head else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{top}{body}</table></div>'


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            shown = ", ".join(map(str, value[:_MAX_ROWS]))
            yield f"{prefix}{key}", shown + (", ..." if len(value) > _MAX_ROWS else "")
        else:
            yield f"{prefix}{key}", "–" if value is None else str(value)
