"""Golden folders: comparison, byte for byte, of results before and after a change of the code.

    python -m benchmarks.golden make FOLDER        runs the commands; a second run continues
    python -m benchmarks.golden compare OLD NEW    lists files that differ; exits with 1 if any do

To check a change that moves code without changing results, run `make` with the old code, `make`
with the new code into another folder, and `compare`. Both folders must be made on one machine,
because the last digits of sums depend on the instructions of the processor.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.calibrate import Case, calibrate_recording
from lifcal.camera import read_camera
from lifcal.simulate import Simulation, SimulationOptions, write_sequence

_SEED = 91
_FRAMES = 12
COMPARED = ("camera.json", "poses.txt", "points.ply", "observations.csv", "*.png")
"""Names of the files that must not change."""

CASES = [
    Case("mini", "desk", _SEED, "markers"),
    Case("mini", "desk", _SEED, "markers", white=False),
    Case("mini", "desk", _SEED, "distance"),
    Case("mini", "desk", _SEED, "known"),
    Case("mini-real", "desk", _SEED, "markers"),
    Case("r5-16mm", "desk", _SEED, "markers"),
]


def make(folder: Path) -> None:
    """Run the commands whose files are compared."""
    for case in CASES:
        recording = folder / "recordings" / case.recording
        options = SimulationOptions(
            camera=case.camera, scene=case.scene, frames=_FRAMES, seed=case.seed
        )
        _once(recording, lambda path, o=options: write_sequence(path, Simulation(o)))  # type: ignore[misc]
        camera = read_camera(recording / "truth" / "camera.json")
        _once(
            folder / case.name,
            lambda path, c=case, r=recording, m=camera: calibrate_recording(c, r, path, m),  # type: ignore[misc]
        )
    first = folder / CASES[0].name
    recording = folder / "recordings" / CASES[0].recording
    camera = read_camera(first / "camera.json")
    width, height = camera.image_size
    _once(
        folder / "adjust",
        lambda path: _run(
            *("adjust", first / "observations.csv", "-o", path, "--grid", first / "grid.json"),
            *("--pixel-size-um", 1000.0 * camera.pixel_size_mm),
            *("--image-size", f"{width}x{height}", "--focal-length-mm", 16),
            *("--loss", "cauchy", "--distortion", "brown"),
        ),
    )
    _once(
        folder / "depth",
        lambda path: _run(
            *("depth", recording / "raw", "--camera", first / "camera.json", "-o", path),
            *("--white", recording / "white.png", "--frames", 0, 3),
        ),
    )


def compare(old: Path, new: Path) -> list[str]:
    """Return the files that differ or are missing in one of the folders, relative to them."""
    names = set()
    for root in (old, new):
        for pattern in COMPARED:
            found = (path.relative_to(root) for path in root.rglob(pattern))
            names |= {path for path in found if path.parts[0] != "recordings"}
    if not names:
        raise SystemExit(f"{old} and {new} hold nothing to compare: make them first")
    return [
        str(name)
        for name in sorted(names)
        if not (old / name).is_file()
        or not (new / name).is_file()
        or not filecmp.cmp(old / name, new / name, shallow=False)
    ]


def _once(folder: Path, work: Callable[[Path], object]) -> None:
    """Do the work unless it was finished before, which a file beside the folder marks."""
    mark = folder.with_name(f"{folder.name}.done")
    if not mark.exists():
        print(f"making {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        work(folder)
        mark.touch()


def _run(*words: object) -> None:
    command = [sys.executable, "-m", "lifcal", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("make").add_argument("folder", type=Path)
    both = verbs.add_parser("compare")
    both.add_argument("old", type=Path)
    both.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "make":
        make(arguments.folder)
        return 0
    differing = compare(arguments.old, arguments.new)
    for name in differing:
        print(f"differs: {name}")
    print(f"{len(differing)} files differ")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
