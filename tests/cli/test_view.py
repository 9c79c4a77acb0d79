"""`lifcal view` as a user meets it."""

import re

import pytest

from lifcal.cli.app import app
from tests.export.test_rgbd_folder import folder  # noqa: F401


def run(*words):
    with pytest.raises(SystemExit) as end:
        app(args=["view", *map(str, words)], prog_name="lifcal")
    return end.value.code


def test_a_page_is_written_and_opened(folder, monkeypatch, capsys):  # noqa: F811
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(folder, "--frames", "1") == 0
    page = folder / "view.html"
    assert opened == [page.resolve().as_uri()]
    assert str(page) in capsys.readouterr().out.replace("\n", "")
    assert re.findall(r'"name":"([^"]*)"', page.read_text()) == ["b.c"]
    assert run(folder, "--no-open") == 0
    assert len(opened) == 1
    assert re.findall(r'"name":"([^"]*)"', page.read_text()) == ["a", "b.c"]


def test_a_calibration_has_its_report(tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("report")
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(tmp_path) == 0
    assert opened == [(tmp_path / "report.html").resolve().as_uri()]


def test_another_folder(tmp_path, capsys):
    assert run(tmp_path, "--no-open") == 1
    assert "not a folder that lifcal depth finished" in capsys.readouterr().err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []
