"""What all commands have in common: examples, --quiet, --json, progress, slips told at once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from rich.table import Table

import lifcal
from lifcal.cli import _console
from lifcal.cli.app import app
from lifcal.errors import InputError
from tests.cli.process import HEAVY, assert_one_line_error


def list_commands():
    """Return all commands by the words that call them."""
    found = {}
    top = typer.main.get_command(app)
    for name, command in top.commands.items():
        inside = getattr(command, "commands", None)
        if inside is None:
            found[name] = command
        else:
            found |= {f"{name} {word}": each for word, each in inside.items()}
    return found


COMMANDS = list_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_can_be_parsed(name):
    command = COMMANDS[name]
    lines = command.epilog.split("\n\n")[1:]
    assert lines
    for line in lines:
        words = line.split()
        start = ["lifcal", *name.split()]
        assert words[: len(start)] == start
        with click.Context(command) as context:  # raises for an option that is not there
            command.parse_args(context, words[len(start) :])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json(name):
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_whole_sentences(name):
    """It says what the thing is and does not go on from the option's name."""
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None) or ""
        if parameter.name == "help":
            continue
        assert text.endswith("."), f"{parameter.name}: {text}"
        assert len(text.split()) >= 3, f"{parameter.name}: {text}"
        first = text.split()[0].rstrip(",:")
        formats = ("opencv", "ros", "colmap", "camera.json", ".json")
        assert first[0].isupper() or first in formats, f"{parameter.name}: {text}"
        assert first not in ("Of", "For", "As", "From"), f"{parameter.name}: {text}"


def test_advice_names_options_that_exist():
    """In findings, in the report, and in every message of the package."""
    known = {word for each in COMMANDS.values() for option in each.params for word in option.opts}
    known |= {word for each in COMMANDS.values() for o in each.params for word in o.secondary_opts}
    known |= {"--debug", "--quiet", "--version", "--help", "--install-completion"}
    room = Path(lifcal.__file__).parent
    named = {
        (word, path.name)
        for path in sorted(room.rglob("*.py"))
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert [(word, name) for word, name in sorted(named) if word not in known] == []


NAMES = ("[/b]x", "desk [red]", "a:smile:b")
"""Names of folders that rich would take for markup, wrong or right, and for an emoji."""


@pytest.mark.parametrize("name", NAMES)
def test_results_show_names_as_they_are(name, capsys):
    _console.output.cache_clear()
    table = Table(title=f"grid from {name}", title_justify="left")
    table.add_column("wide enough for the title of the table")
    table.add_row(name)
    _console.output().print(f"{name}/camera.json: written", soft_wrap=True)
    _console.output().print(table)
    said = capsys.readouterr().out
    _console.output.cache_clear()
    assert f"{name}/camera.json: written\n" in said
    assert f"grid from {name}" in said
    assert said.count(name) == 3


@pytest.mark.parametrize("name", NAMES)
def test_progress_in_a_terminal_shows_names_as_they_are(name, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    _console.messages.cache_clear()
    listener = _console.RichListener()
    with listener.status(f"reading {name}"):
        pass
    with listener.steps(f"focusing {name}", 2) as step:
        step("")
        step(f"measuring {name}")
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    _console.messages.cache_clear()
    assert f"reading {name}" in said
    assert f"measuring {name}" in said


def test_the_shell_completes_commands(monkeypatch):
    done = subprocess.run(
        [sys.executable, "-m", "lifcal"],
        env={
            **os.environ,
            "COMP_WORDS": "lifcal cali",
            "COMP_CWORD": "1",
            "_LIFCAL_COMPLETE": "complete_bash",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["calibrate"]


MISSING = [
    ["calibrate", "nowhere", "--pixel-size-um", "5.5", "-o", "out"],
    ["calibrate", ".", "--pixel-size-um", "5.5", "-o", "out"],
    ["focus", "nowhere", "-o", "out"],
    ["depth", "nowhere", "--camera", "camera.json", "-o", "out"],
    ["grid", "no*.png", "-o", "grid.json"],
    ["export", "nowhere", "--to", "opencv", "-o", "out"],
    ["evaluate", "nowhere", "--truth", "desk"],
    ["view", "nowhere"],
    [
        "adjust",
        "none.csv",
        "--pixel-size-um",
        "5",
        "--image-size",
        "9x9",
        "--focal-length-mm",
        "16",
        "-o",
        "out",
    ],
]


@pytest.mark.parametrize("words", MISSING, ids=lambda words: " ".join(words[:2]))
def test_a_missing_folder_is_told_before_anything_heavy_is_loaded(words, tmp_path):
    code = (
        f"import sys; sys.argv = {['lifcal', *words]}\n"
        "from lifcal.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code)\n"
        f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split("\n")[:2] == ["1", "[]"]
    assert re.search(r"error: .*(no such f|no images|no file matches)", done.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--white", "--grid", "--distances", "--timestamps"])
def test_a_missing_file_is_told_at_once(option, here, tmp_path):
    (tmp_path / "0.png").touch()
    words = [tmp_path, option, tmp_path / "none.txt", "--pixel-size-um", 5.5, "-o", tmp_path / "o"]
    assert_one_line_error(here("calibrate", *words), "none.txt: no such file")


# Progress


@pytest.fixture
def console(monkeypatch):
    """A console that is no terminal, and a clock that is set by hand."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(_console, "time", clock)
    monkeypatch.setattr(_console, "_began", 100.0)
    yield clock
    _console.be_quiet(False)


def run_some(clock):
    listener = _console.RichListener()
    for _ in range(2):
        with listener.status("fitting the grid"):
            clock.now += 3.0
    with listener.steps("focusing", 5) as step:
        for _ in range(5):
            clock.now += 6.0
            step("")
    _console.say_note("the lens was moved")


def test_progress_is_lines_where_there_is_no_terminal(console, capsys):
    run_some(console)
    assert capsys.readouterr().err.splitlines() == [
        "[   0 s] fitting the grid",
        "[   6 s] focusing (0 of 5)",
        "[  18 s] focusing (2 of 5)",
        "[  30 s] focusing (4 of 5)",
        "lifcal: note: the lens was moved",
    ]


def test_quiet_shows_errors_only(console, capsys):
    _console.be_quiet(True)
    run_some(console)
    assert capsys.readouterr().err == ""
    _console.say_error("the disk is full")
    assert capsys.readouterr().err == "lifcal: error: the disk is full\n"


def test_quiet_may_stand_anywhere(monkeypatch, capsys, tmp_path):
    from lifcal.cli.app import run

    monkeypatch.setattr(sys, "argv", ["lifcal", "clean", str(tmp_path / "none"), "--quiet"])
    try:
        with pytest.raises(SystemExit) as end:
            run()
        assert end.value.code == 1
        assert _console._quiet
    finally:
        _console.be_quiet(False)
    assert "no such folder" in capsys.readouterr().err


# lifcal clean


@pytest.fixture
def finished(tmp_path):
    """A folder as `lifcal calibrate` leaves it, with files that hold nothing of use."""
    for name in ("focus.json", "camera.json", "focused/0.png", "cache/sfm.npz"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(b"x" * 10)
    for index in range(3):
        (tmp_path / "out" / "virtual_depth").mkdir(exist_ok=True)
        (tmp_path / "out" / "virtual_depth" / f"{index}.tiff").write_bytes(b"y" * 1_000_000)
    return tmp_path / "out"


def test_clean_frees_what_can_be_made_again(finished, here):
    done = here("clean", finished, "--dry-run")
    assert "would free 3.0 MB in 4 files (virtual_depth, cache)" in done.stdout
    assert (finished / "cache" / "sfm.npz").exists()
    content = json.loads(here("clean", finished, "--json").stdout)
    assert content[0]["bytes"] == 3_000_010
    left = {path.name for path in finished.rglob("*") if path.is_file()}
    assert left == {"focus.json", "camera.json", "0.png"}
    assert "freed 0.0 MB in 0 files" in here("clean", finished).stdout


def test_a_file_is_not_the_folder_of_a_run(here, tmp_path):
    (tmp_path / "camera.json").write_text("{}")
    for words in (("export", "--to", "colmap", "-o", tmp_path / "x"), ("view",)):
        done = here(words[0], tmp_path / "camera.json", *words[1:])
        assert_one_line_error(done, "camera.json: is a file; needs the folder that")


def test_known_optics_are_taken_from_the_folder_of_a_calibration(tmp_path):
    from lifcal.cli.calibrate import _parse_known

    assert _parse_known(str(tmp_path)) == str(tmp_path)
    with pytest.raises(InputError, match=r"needs a camera\.json"):
        _parse_known(str(tmp_path / "none"))


def test_clean_touches_nothing_else(finished, here, tmp_path):
    (tmp_path / "photos" / "cache").mkdir(parents=True)
    assert_one_line_error(here("clean", tmp_path / "photos"), "holds nothing to remove")
    assert (tmp_path / "photos" / "cache").exists()
    assert_one_line_error(here("clean", tmp_path / "none"), "no such folder")
    (finished / "camera.json").unlink()
    assert_one_line_error(here("clean", finished), "no finished calibration")
    assert (finished / "cache" / "sfm.npz").exists()
