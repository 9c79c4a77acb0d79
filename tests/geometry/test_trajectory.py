"""Times of frames."""

import numpy as np
import pytest

from lifcal.errors import DataError
from lifcal.geometry import RigidTransform, Trajectory, read_timestamps, write_tum


@pytest.mark.parametrize(("metric", "unit"), [(True, "metres"), (False, "no scale")])
def test_the_first_line_says_the_unit(tmp_path, metric, unit):
    path = tmp_path / "poses.txt"
    write_tum(path, Trajectory(np.zeros(1), (RigidTransform.identity(),)), metric=metric)
    assert path.read_text().splitlines()[0].endswith(f"(camera to world, {unit})")


def test_timestamps(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("# seconds\n1.5 first.png\n\n2e3 # late\n")
    assert read_timestamps(path) == [1.5, 2000.0]
    for bad in ("1\nnan\n", "1\ninf\n", "1\nfast\n"):
        path.write_text(bad)
        with pytest.raises(DataError, match="line 2"):
            read_timestamps(path)
    path.write_text("1731772800250000000\n")
    with pytest.raises(DataError, match="needs seconds"):
        read_timestamps(path)
    for bad in ("1\n2\n2\n", "1\n2\n1.5\n", "1\n2\n2.0000001\n"):
        path.write_text(bad)
        with pytest.raises(DataError, match=r"line 3: .* is not later"):
            read_timestamps(path)
