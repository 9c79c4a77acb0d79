"""ORB-SLAM3 itself on a folder of `lifcal depth`: `python -m benchmarks.orb_slam3 FOLDER OUT`.

This script needs `pip install pyorbslam3` (GPL, Linux; nothing in lifcal imports it). As
ORB-SLAM3's example `rgbd_tum` does, it reads camera.yaml and associations.txt, tracks frame by
frame, and writes the trajectory. ORB-SLAM3 uses its vocabulary only to recognize places. Instead of
the usual one of 140 MB, one made from the folder's own images is used, which is enough for a short
sequence.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import IntArray
from lifcal.export.rgbd_folder import RgbdFolder, open_rgbd

_BRANCHES, _LEVELS = 8, 5
_FEATURES = 1500
_EVERY = 6
"""Step between the frames from which the vocabulary is made."""
_ROUNDS = 6


def main() -> int:
    folder, out = open_rgbd(Path(sys.argv[1])), Path(sys.argv[2])
    pyorbslam3: Any = importlib.import_module("pyorbslam3")
    vocabulary = out.with_suffix(".vocabulary")
    vocabulary.write_text(make_vocabulary(folder))
    slam = pyorbslam3.Slam(
        str(vocabulary), str(folder.folder / "camera.yaml"), pyorbslam3.Sensor.RGBD, False
    )
    for line in (folder.folder / "associations.txt").read_text().splitlines():
        time, image, _, depth = line.split()
        measured = _read(folder.folder / depth).astype(np.float32)
        slam.track_rgbd(_read(folder.folder / image), measured, float(time))
    slam.shutdown()
    slam.save_trajectory_tum(str(out))
    return 0


def _read(path: Path, how: int = cv2.IMREAD_UNCHANGED) -> npt.NDArray[Any]:
    return np.asarray(cv2.imread(str(path), how))


def make_vocabulary(folder: RgbdFolder) -> str:
    """Return a vocabulary tree of ORB descriptors in the text format of DBoW2."""
    orb = cv2.ORB.create(_FEATURES)
    found = []
    for name in folder.names[::_EVERY]:
        image = _read(folder.folder / "rgb" / f"{name}.png", cv2.IMREAD_GRAYSCALE)
        descriptors = orb.detectAndCompute(image, None)[1]
        if descriptors is not None:
            found.append(descriptors)
    bits = np.unpackbits(np.concatenate(found), axis=1).astype(np.float32)
    rows: list[str] = []
    _split(bits, np.arange(len(bits)), 0, 0, rows, np.random.default_rng(0))
    return "\n".join([f"{_BRANCHES} {_LEVELS} 0 0", *rows]) + "\n"


def _split(
    bits: npt.NDArray[np.float32],
    members: IntArray,
    parent: int,
    level: int,
    rows: list[str],
    random: np.random.Generator,
) -> None:
    """Add the branches of a node, by k-means clustering of its descriptors (Hamming distance)."""
    here = bits[members]
    centers = bits[random.choice(members, min(_BRANCHES, len(members)), replace=False)]
    for _ in range(_ROUNDS):
        labels = (here @ (1.0 - 2.0 * centers.T) + centers.sum(axis=1)).argmin(axis=1)
        centers = np.array(
            [
                np.round(here[labels == i].mean(axis=0)) if (labels == i).any() else center
                for i, center in enumerate(centers)
            ],
            np.float32,
        )
    for i, center in enumerate(centers):
        mine = members[labels == i]
        if not len(mine):
            continue
        leaf = level == _LEVELS - 1 or len(mine) == 1
        words = " ".join(map(str, np.packbits(center.astype(np.uint8)).tolist()))
        rows.append(f"{parent} {int(leaf)} {words} 1.0")
        if not leaf:
            _split(bits, mine, len(rows), level + 1, rows, random)


if __name__ == "__main__":
    raise SystemExit(main())
