"""Parameters and a verdict as verbs print them, and the exit code that follows."""

import json
from types import SimpleNamespace

import pytest

import lifcal.pipeline
from lifcal.cli._console import output
from lifcal.cli._results import EXIT_DISTRUST, exit_by_verdict, print_parameters, print_verdict


@pytest.fixture(autouse=True)
def console(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    output.cache_clear()
    yield
    output.cache_clear()


def test_value_sigma_unit(capsys):
    parameters = {
        "f_L": {"value": 16.7464, "sigma": 0.0097},
        "k0": {"value": -3.05e-8, "sigma": 1.8e-9},
        "k1": {"value": 0.0, "sigma": 0.0},
        "B": {"value": 123.0, "sigma": 4.0},
    }
    print_parameters(parameters, {"f_L": "mm", "k0": "px^-2", "k1": "px^-4", "B": "no scale"})
    text = " ".join(capsys.readouterr().out.split())
    assert "16.7464 ± 0.0097 │ mm" in text
    assert "(-3.05 ± 0.18) × 10⁻⁸ │ px⁻²" in text
    assert "0 (held)" in text
    assert "no scale" in text
    assert "123" not in text


@pytest.mark.parametrize("level", ["good", "usable", "caution", "poor"])
def test_only_what_is_not_to_be_trusted_has_an_exit_code(level, capsys):
    verdict = {"level": level, "text": "Text.", "reasons": ["a", "b"], "help": ["Do it."]}
    print_verdict(verdict)
    assert capsys.readouterr().out == "Text.\n- b\nWhat would help: Do it.\n"
    if level != "poor":
        exit_by_verdict(verdict)
        return
    with pytest.raises(SystemExit) as ended:
        exit_by_verdict(verdict)
    assert ended.value.code == EXIT_DISTRUST == 3


@pytest.mark.parametrize(("level", "code"), [("usable", 0), ("caution", 0), ("poor", 3)])
@pytest.mark.parametrize("as_json", [False, True])
def test_frames_left_out_do_not_fail_a_calibration(
    here, tmp_path, monkeypatch, level, code, as_json
):
    """The exit code follows the verdict, whatever could not be used."""
    summary = {
        "parameters": {"F": {"value": 924.0, "sigma": 0.5}},
        "units": {"F": "px"},
        "n_registered": 11,
        "n_frames": 12,
        "n_used": 100,
        "n_points": 10,
        "rms_px": 0.1,
        "scale_source": "markers",
        "verdict": {"level": level, "text": "Text.", "reasons": ["a"], "help": ["Do it."]},
        "findings": [],
    }
    found = SimpleNamespace(summary=summary, problems=("cut.png",), n_frames=12, folder=tmp_path)
    monkeypatch.setattr(lifcal.pipeline, "calibrate", lambda *_, **__: found)
    (tmp_path / "a.png").write_bytes(b"")
    words = ["--json"] if as_json else []
    done = here("calibrate", tmp_path / "a.png", "--pixel-size-um", 5.5, "-o", "out", *words)
    assert done.returncode == code
    assert "1 of 12 frames could not be used" in done.stderr
    if as_json:
        assert json.loads(done.stdout)["verdict"]["level"] == level
    else:
        assert "924.00 ± 0.50" in done.stdout
