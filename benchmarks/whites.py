"""White images that belong to a recording, and white images that do not.

Eight cameras record a few frames each. The white image of the recording must be accepted without a
finding, and so must every frame with the grid that was found. A white image that was recorded with
another focus, another aperture or another camera must be refused or reported.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure
from lifcal.arrays import ImageArray
from lifcal.camera import MicroLensGrid
from lifcal.diagnostics import Finding
from lifcal.errors import DataError
from lifcal.grid.check import check_grid
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import open_frames
from lifcal.listener import Listener
from lifcal.pipeline.focusing import focus_frames
from lifcal.pipeline.usable import UsableFrames
from lifcal.simulate import CAMERAS, Imperfections, Simulation, SimulationOptions
from lifcal.simulate.imperfections import REAL
from lifcal.simulate.sequence import write_raw
from lifcal.virtual import DepthOptions

FIRST_SEED = 501
FRAMES = 4
REFOCUSED = 1.02
"""Factor by which b_L0 is multiplied: that of a 16 mm lens focused at 0.6 m instead of 1 m."""
_SAYS = ("grid-moved", "grid-misfit", "white-aperture")
"""Codes of the findings which report a white image that does not belong to the recording."""

_SHADED = Imperfections(stop_mm=2.5, field_curvature=0.01, cos4=True)
_DIRTY = replace(REAL, dust=20, white_dust=10)
_CODED = replace(REAL, gamma=2.2)
_COMPRESSED = replace(REAL, compression="jpeg")
RECORDINGS: tuple[tuple[str, str, Imperfections | None], ...] = (
    ("mini", "mini", None),
    ("mini-real", "mini-real", None),
    ("mini-square-real", "mini-square-real", None),
    ("mini-keplerian", "mini-keplerian", None),
    ("mini, stop and shading", "mini", _SHADED),
    ("mini-real, dust", "mini-real", _DIRTY),
    ("mini-real, gamma 2.2", "mini-real", _CODED),
    ("mini-real, JPEG", "mini-real", _COMPRESSED),
)


class _Notes(Listener):
    """Collects the findings of a run."""

    def __init__(self) -> None:
        self.said: list[Finding] = []

    def finding(self, finding: Finding) -> None:
        self.said.append(finding)


@dataclass(frozen=True)
class Case:
    """A recording with a white image, and the outcome."""

    name: str
    belongs: bool
    outcome: str
    """The white image was 'taken' (accepted), 'noted' (with a finding) or 'refused'."""
    text: str

    @property
    def right(self) -> bool:
        """Whether the recording's own white image was accepted, or another one was not."""
        return (self.outcome == "taken") == self.belongs


def run() -> list[Figure]:
    cases = []
    frames_refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        for index, (name, camera, imperfections) in enumerate(RECORDINGS):
            options = SimulationOptions(
                camera=camera,
                frames=FRAMES,
                seed=FIRST_SEED + index,
                rays_per_pixel=8,
                imperfections=imperfections,
            )
            folder = Path(scratch) / str(index)
            simulation = Simulation(options)
            suffix = simulation.optics.imperfections.suffix
            for number in range(FRAMES):
                raw = simulation.render_frame(number).raw
                write_raw(folder / "raw" / f"{number:04d}{suffix}", raw)
            for kind, white in _list_whites(simulation):
                case, grid = _try(folder, name, kind, white)
                print(f"{case.name}: {case.outcome} {case.text}", flush=True)
                cases.append(case)
                if grid is not None and case.belongs:
                    frames_refused += _count_refused(folder, grid)
    valid = [case for case in cases if case.belongs]
    wrong = [case for case in cases if not case.belongs]
    return [
        Figure(
            f"{len(valid)} valid white images: refused or doubted",
            sum(not case.right for case in valid),
            "",
            "lower",
            0,
        ),
        Figure(
            f"{len(wrong)} wrong white images: taken without a word",
            sum(not case.right for case in wrong),
            "",
            "lower",
            0,
        ),
        Figure(
            f"{len(valid) * FRAMES} frames of the same recordings: refused",
            frames_refused,
            "",
            "lower",
            0,
        ),
    ]


def _list_whites(simulation: Simulation) -> Iterator[tuple[str, ImageArray]]:
    """Yield the recording's own white image, and four that do not belong to it."""
    options = simulation.options
    design, errors = CAMERAS[options.camera], simulation.optics.imperfections
    yield "own", simulation.render_white()
    p = design.parameters
    b, micro = p.lens_to_array_mm, p.array_to_sensor_mm
    refocused = replace(
        design,
        parameters=replace(p, lens_to_array_mm=b * REFOCUSED),
        # The micro lenses do not move; the pitch of their images follows from the projection from
        # the main lens' center.
        pitch_px=design.pitch_px * (1.0 + micro / (b * REFOCUSED)) / (1.0 + micro / b),
    )
    others = {
        "another focus": refocused.build(errors, options.seed),
        "another camera": design.build(
            replace(errors, lattice="ideal", rotation_deg=0.3), options.seed + 1
        ),
    }
    for kind, optics in others.items():
        other = Simulation(options)
        other.optics = optics
        yield kind, other.render_white()
    for factor in (0.8, 1.25):
        changed = replace(errors, white_aperture=factor)
        yield (
            f"aperture times {factor:g}",
            Simulation(replace(options, imperfections=changed)).render_white(),
        )


def _try(
    folder: Path, name: str, kind: str, white: ImageArray
) -> tuple[Case, MicroLensGrid | None]:
    """Run `focus` on the recording with a white image, and return the outcome."""
    place = folder / kind.replace(" ", "-")
    path = place / "white.png"
    write_png(path, white)
    notes = _Notes()
    name, belongs = f"{name}, {kind}", kind == "own"
    frames = open_frames([str(folder / "raw")])
    sources = {"grid": None, "white": path, "xml": None}
    try:
        found = focus_frames(frames, place / "out", DepthOptions(), sources, notes)
    except DataError as error:
        return Case(name, belongs, "refused", str(error)), None
    shared = found.store.shared
    said = [finding.text for finding in notes.said if finding.code in _SAYS]
    case = Case(name, belongs, "noted" if said else "taken", "; ".join(said))
    return case, None if shared is None else shared.grid


def _count_refused(folder: Path, grid: MicroLensGrid) -> int:
    """Return the number of frames of a recording that the grid check of `lifcal depth` refuses."""
    usable = UsableFrames(open_frames([str(folder / "raw")]))
    refused = 0
    for index in range(FRAMES):
        try:
            check_grid(usable[index], grid)
        except DataError as error:
            print(f"  refused: {error}")
            refused += 1
    return refused
