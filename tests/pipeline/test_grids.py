"""`lifcal.find_grid` and `lifcal.focus`, as a program calls them; tests/cli has the rest."""

import numpy as np
import pytest

import lifcal
from lifcal.errors import InputError
from lifcal.imaging.files import write_png
from lifcal.listener import Listener
from lifcal.simulate import Simulation, SimulationOptions


class Heard(Listener):
    """Keeps what it is told."""

    def __init__(self):
        self.findings = []

    def finding(self, finding):
        self.findings.append(finding)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Four raws and a white image of a small camera."""
    folder = tmp_path_factory.mktemp("grids")
    simulation = Simulation(
        SimulationOptions(camera="mini", scene="desk", frames=4, rays_per_pixel=4)
    )
    write_png(folder / "white.png", simulation.render_white())
    for index in range(4):
        write_png(folder / "raw" / f"{index}.png", simulation.render_frame(index).raw)
    return folder, simulation.optics.camera.grid


def test_a_grid_from_a_white_image(recording, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, true = recording
    found = lifcal.find_grid(folder / "white.png")
    assert not list(tmp_path.iterdir())
    assert found.grid.pitch_px == pytest.approx(true.pitch_px, rel=1e-3)
    assert found.fit.source == "white"
    assert found.problems == ()
    again = lifcal.find_grid(str(folder / "white.png"), "grid.json")
    assert {path.name for path in tmp_path.iterdir()} == {"grid.json", "grid_fit.png"}
    stored = lifcal.read_grid("grid.json")
    np.testing.assert_allclose(stored.centers_raw_px, again.grid.centers_raw_px, atol=1e-9)


def test_frames_that_cannot_be_read_are_told(recording, tmp_path):
    folder, true = recording
    (tmp_path / "broken.png").write_bytes(b"not an image")
    heard = Heard()
    found = lifcal.find_grid([folder / "raw", tmp_path / "broken.png"], listener=heard)
    assert found.fit.source == "frames"
    assert found.grid.pitch_px == pytest.approx(true.pitch_px, rel=1e-3)
    unusable = [each for each in heard.findings if each.code == "frame-unusable"]
    assert [each.text for each in unusable] == list(found.problems)
    assert "broken.png" in found.problems[0]


def test_focus_as_a_function(recording, tmp_path):
    folder, _ = recording
    run = lifcal.focus(
        folder / "raw" / "0.png", tmp_path / "out", white=folder / "white.png", depth_range=(6, 2)
    )
    assert run.done == ["0"]
    assert run.setup.depth_range == (2.0, 6.0)
    assert (tmp_path / "out" / "focused" / "0.png").is_file()
    again = lifcal.focus(
        folder / "raw" / "0.png", tmp_path / "out", white=folder / "white.png", depth_range=(2, 6)
    )
    assert again.kept == 1


def test_wrong_arguments_are_said(recording, tmp_path):
    folder, _ = recording
    with pytest.raises(InputError, match=r"the grid is written as \.json"):
        lifcal.find_grid(folder / "white.png", tmp_path / "grid.xml")
    with pytest.raises(InputError, match="max_frames is 0, needs 1 or more"):
        lifcal.find_grid(folder / "white.png", max_frames=0)
    with pytest.raises(InputError, match="give only one"):
        lifcal.focus(folder / "raw", tmp_path / "out", grid="a.json", xml="b.xml")
    assert not list(tmp_path.iterdir())
