"""What is left of a calibration that failed: summary.json and report.html that say why."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lifcal.arrays import spread_choice
from lifcal.diagnostics import Finding, explain_failure
from lifcal.errors import DataError, EstimationError, LifcalError
from lifcal.files import write_json
from lifcal.imaging.files import encode_jpeg
from lifcal.imaging.preview import fit
from lifcal.pipeline.finished import FILES
from lifcal.pipeline.grids import GridNotShownError
from lifcal.report.failure import describe_failure, write_failure_page

if TYPE_CHECKING:
    from lifcal.imaging.frames import Frames
    from lifcal.pipeline.focusing import FocusRun

_MOST_PICTURES = 4
"""Focused images on the page: the first, the last, and some between."""
_PICTURE_WIDTH = 600
"""Width of the pictures on the page, px: enough to see texture and blur."""


@contextmanager
def explain_failures(findings: Sequence[Finding]) -> Iterator[None]:
    """Put what was noticed of motion and scene in front of an error that follows from it."""
    try:
        yield
    except EstimationError as error:
        raise explain_failure(error, findings) from error


class FailureReport:
    """Collects what a run knows, and writes a report if the run fails.

    The error gets a note that says where the report is.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    frames : Frames
    kept : bool
        Whether a finished calibration in the folder has been kept elsewhere, so that its files may
        be replaced.
    """

    def __init__(self, folder: Path, frames: Frames, kept: bool) -> None:
        self._folder, self._frames = folder, frames
        self.kept = kept
        self.findings: list[Finding] = []
        """What was noticed so far."""
        self.run: FocusRun | None = None
        """Once frames are focused."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Write the report if an error ends what is done inside.

        Before frames are focused, only errors count that say what images show (EstimationError and
        GridNotShownError): all others say that the folder or the files are not what they should be.
        """
        try:
            yield
        except (EstimationError, DataError) as error:
            if self.run is not None or isinstance(error, EstimationError | GridNotShownError):
                self._write(error)
            raise

    def _write(self, error: LifcalError) -> None:
        """Write summary.json and report.html; a full disk must not hide the error itself."""
        finished = (self._folder / "camera.json").exists()
        if finished and not self.kept:
            return
        findings, done = list(self.findings), []
        if self.run is not None:
            done = self.run.done
            findings += self.run.usable.findings
            if self.run.store.setup is not None:
                findings += self.run.store.setup.findings
        summary = describe_failure(
            error,
            frames=self._frames.names,
            done=done,
            findings=findings,
            pictures=self._draw(),
            provenance=self._describe_source(),
        )
        try:
            for name in FILES:
                (self._folder / name).unlink(missing_ok=True)
            write_json(self._folder / "summary.json", summary)
            write_failure_page(summary, self._folder / "report.html")
        except (DataError, OSError):
            return
        error.add_note(f"{self._folder / 'report.html'} shows what was seen")

    def _describe_source(self) -> Mapping[str, Any]:
        names = self._frames.names
        return {
            "frames": len(names),
            "first frame": self._frames.source(0) if len(names) else "",
            "folder": str(self._folder),
        }

    def _draw(self) -> dict[str, str]:
        """Return pictures of some focused frames, of a raw if there is none."""
        if self.run is None or not self.run.done:
            return self._draw_raw()
        done, images = self.run.done, self.run.store.images
        chosen = [done[i] for i in spread_choice(len(done), min(_MOST_PICTURES, len(done)))]
        kinds = [(f"Frame {name}, focused", name, "focused") for name in chosen]
        middle = chosen[len(chosen) // 2]
        kinds.append((f"Frame {middle}, virtual depth", middle, "color"))
        pictures = {}
        for title, name, kind in kinds:
            try:
                pictures[title] = _encode(np.asarray(images.load(name, kind)))
            except DataError:
                continue
        return pictures

    def _draw_raw(self) -> dict[str, str]:
        try:
            frame = self._frames.read(0)
        except (DataError, IndexError):
            return {}
        pixels = np.asarray(frame.gray, np.float64)
        top = max(float(pixels.max(initial=0.0)), 1e-9)
        return {"First raw frame": _encode((255.0 * pixels / top).astype(np.uint8))}


def _encode(image: np.ndarray[Any, Any]) -> str:
    """Return a picture as JPEG in base64, at most so wide."""
    if image.dtype == np.uint16:
        image = (image // 257).astype(np.uint8)
    rows, cols = image.shape[:2]
    width = min(_PICTURE_WIDTH, cols)
    small = fit(np.asarray(image, np.uint8), width, max(round(rows * width / cols), 1))
    return base64.b64encode(encode_jpeg(small)).decode()
