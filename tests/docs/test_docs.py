"""The documentation's examples run, its links lead somewhere, and it names what there is."""

import re
from pathlib import Path

import pytest

from lifcal.simulate import CAMERAS, PATHS, SCENES

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
EXAMPLES = [
    (page.name, number, code)
    for page in PAGES
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_everything_that_can_be_simulated_is_described():
    text = (REPOSITORY / "docs" / "how-to" / "simulate.md").read_text(encoding="utf-8")
    for name in [*CAMERAS, *SCENES, *PATHS]:
        assert f"`{name}`" in text, name


def test_every_dependency_has_its_row():
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    text = (REPOSITORY / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    for name in re.findall(r'"([\w-]+)', block):
        assert f"| {name} |" in text, name
