"""`lifcal markers` as a user meets it."""

from tests.cli.process import assert_one_line_error


def test_markers(here, tmp_path):
    done = here("markers", "-o", tmp_path / "m.pdf", "--size-mm", "30", "--paper", "Letter")
    assert done.returncode == 0, done.stderr
    assert "sides of 30 mm, 1 page letter. Print at 100 %" in done.stdout
    assert (tmp_path / "m.pdf").read_bytes().startswith(b"%PDF")
    assert_one_line_error(here("markers", "-o", tmp_path / "m.png"), "is written as .pdf")
    assert_one_line_error(here("markers", "-o", tmp_path / "m.pdf", "--paper", "b4"), "paper")
