"""Listen to a run: through Python's logging, and with a listener of our own.

Run it as it is: `python examples/listen.py`. Nothing is kept on disk.
"""

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lifcal


class Progress(lifcal.Listener):
    """Counts the frames that are done, and keeps what was noticed; all else is logged as usual."""

    def __init__(self) -> None:
        self.done = 0
        self.findings: list[lifcal.Finding] = []

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """Count steps instead of logging each of them."""

        def step(new_text: str) -> None:
            self.done += 1
            print(f"{new_text or text}: {self.done} of {total}")

        self.done = 0
        yield step

    def finding(self, finding: lifcal.Finding) -> None:
        """Keep a finding, and log it too."""
        self.findings.append(finding)
        super().finding(finding)


def main() -> None:
    """Focus two simulated raws and a broken one; the grid is found in the white image."""
    logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s", force=True)
    logging.getLogger("lifcal").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        recording = Path(name) / "recording"
        options = lifcal.SimulationOptions(camera="mini", frames=2, rays_per_pixel=4)
        lifcal.write_sequence(recording, lifcal.Simulation(options))
        (recording / "raw" / "broken.png").write_bytes(b"not an image")

        # Without a listener, stages and findings go to the loggers lifcal.stages and .findings.
        lifcal.find_grid(recording / "white.png")

        progress = Progress()
        run = lifcal.focus(
            recording / "raw",
            Path(name) / "focus",
            white=recording / "white.png",
            listener=progress,
        )
    print(f"{len(run.done)} frames are focused; codes of what was noticed:")
    for finding in progress.findings:
        print(f"- {finding.code} ({finding.severity})")


if __name__ == "__main__":
    main()
