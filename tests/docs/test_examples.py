"""The scripts of `examples/` run as they are, and say what they promise."""

import logging
import runpy
from pathlib import Path

import pytest

from lifcal.metric import read_cloud

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "camera_callback.py": ("waiting: ", "used: F = ", "the true F is"),
    "own_order.py": ("f_L = ", "truth"),
    "raws_to_cloud.py": ("scale from markers", "fused.ply: "),
    "listen.py": (
        "lifcal.stages: fitting the grid",
        "focusing: 3 of 3",
        "lifcal.findings: frame-unusable: ",
        "2 frames are focused",
        "- frame-unusable",
    ),
}
"""What each script has to print."""


@pytest.fixture
def own_logging():
    """Programs set up logging; other tests must not see it."""
    root, ours = logging.getLogger(), logging.getLogger("lifcal")
    handlers, level = root.handlers[:], ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


def test_every_script_is_run():
    """The node for ROS has its own tests: test_ros2_rgbd.py."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAID, "ros2_rgbd.py"}


@pytest.mark.parametrize("name", sorted(SAID))
@pytest.mark.usefixtures("own_logging")
def test_examples_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr().out
    for words in SAID[name]:
        assert words in said
    if name == "raws_to_cloud.py":
        cloud = read_cloud(tmp_path / "raws_to_cloud" / "fused.ply")
        assert len(cloud) > 5000
