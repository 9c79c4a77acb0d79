"""The documentation's examples run, its links lead somewhere, and it names what there is."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lifcal
from lifcal.calibration import CalibrateOptions, list_settings
from lifcal.simulate import CAMERAS, PATHS, SCENES

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
TUTORIAL = DOCS / "tutorial" / "first-calibration.md"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])
EXAMPLES = [
    (page.name, number, code)
    for page in PAGES
    if page != TUTORIAL
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize(
    "code",
    [code for _, _, code in EXAMPLES],
    ids=[f"{page}-{number}" for page, number, _ in EXAMPLES],
)
def test_examples_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {})
    assert capsys.readouterr().out


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def test_tutorial_runs(tmp_path):
    """Every command and every Python block of the tutorial runs, in the order of the page."""
    text = TUTORIAL.read_text(encoding="utf-8")
    blocks = re.findall(r"```(console|python)\n(.*?)```", text, re.DOTALL)
    ran: list[str] = []
    measured: list[float] = []
    for language, block in blocks:
        if language == "python":
            commands = [["-c", block]]
        else:
            assert all(line.startswith("$ lifcal ") for line in block.splitlines()), block
            commands = [["-m", *shlex.split(line[2:])] for line in block.splitlines()]
        for command in commands:
            done = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            ran.append(done.stdout)
            if command[:3] == ["-m", "lifcal", "calibrate"]:
                assert "Good: " in done.stdout
            lengths = re.findall(r"are ([\d.]+) mm apart", done.stdout)
            measured += [float(length) for length in lengths]
    assert len(ran) >= 6
    assert len(measured) >= 2
    # what the page says of single pixels of this small camera: some of them err by 2 sigma
    assert np.median(np.abs(np.array(measured) - 60.0)) < 2.0
    for file in (
        "grid_fit.png",
        "camera/report.html",
        "rgbd/view.html",
        "rgbd/fused.ply",
        "colmap/sparse/0/points3D.txt",
    ):
        assert (tmp_path / file).stat().st_size > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_wrapped(page):
    """Prose has lines of 100 columns at most; tables, code and pictures may be wider."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.DOTALL)
    wide = [
        line
        for line in text.splitlines()
        if len(line) > 100 and not re.match(r"\s*\||    |!\[", line)
    ]
    assert wide == []


def test_source_names_pages_that_exist():
    for file in sorted(
        [*(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    ):
        for name in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text(encoding="utf-8")):
            assert (REPOSITORY / name).exists(), f"{file.name} names {name}"


def test_every_page_is_in_the_navigation():
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = sorted(re.findall(r"[\w/-]+\.md", navigation))
    assert listed == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_every_room_has_its_reference():
    rooms = sorted(path.parent.name for path in Path(lifcal.__file__).parent.glob("*/__init__.py"))
    described = "".join(
        page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md")
    )
    for room in rooms:
        if room != "cli":  # its reference is `lifcal --help`
            assert f"::: lifcal.{room}\n" in described, room


def test_everything_that_can_be_simulated_is_described():
    text = (DOCS / "how-to" / "simulate.md").read_text(encoding="utf-8")
    for name in [*CAMERAS, *SCENES, *PATHS]:
        assert f"`{name}`" in text, name


def test_every_setting_has_its_row_with_its_default():
    text = (DOCS / "how-to" / "calibrate.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([\w.,]+) \|", text, re.MULTILINE))
    usual = CalibrateOptions(5.5)
    assert set(list_settings()) <= set(rows)
    written = {name: rows[name] for name in list_settings()}
    assert usual.with_settings(written).as_dict() == usual.as_dict()


def test_every_dependency_has_its_row():
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    text = (DOCS / "reference" / "dependencies.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    for name in re.findall(r'"([\w-]+)', block):
        assert f"| {name} |" in text, name
