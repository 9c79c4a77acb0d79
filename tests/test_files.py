"""Files are whole or not there, and folders have one run at a time."""

import pytest

from lifcal.errors import DataError
from lifcal.files import hold_folder, make_file_names, write_bytes
from lifcal.pipeline.focusing import FOCUS
from lifcal.pipeline.store import FolderStore

PART = ".focus.json.abc123.lifcal-part"


def test_a_folder_has_one_run_at_a_time(tmp_path):
    folder = tmp_path / "new" / "out"
    with hold_folder(folder):
        with pytest.raises(DataError, match="another run is writing there"), hold_folder(folder):
            pass
        write_bytes(folder / "a.txt", b"a")
    with hold_folder(folder):  # free again
        pass
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


def test_a_folder_that_stays_empty_is_not_left(tmp_path):
    with pytest.raises(ZeroDivisionError), hold_folder(tmp_path / "new" / "out"):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    with hold_folder(tmp_path / "there"):
        pass
    assert (tmp_path / "there").is_dir()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match="is a file, needs a folder"),
        hold_folder(tmp_path / "file" / "out"),
    ):
        pass


def test_a_run_that_was_killed_at_its_first_write_begins_anew(tmp_path):
    (tmp_path / PART).write_bytes(b"half")
    FolderStore.open(FOCUS, tmp_path, {}, {})
    assert not list(tmp_path.iterdir())


def test_nothing_is_removed_from_the_folders_of_others(tmp_path):
    (tmp_path / PART).write_bytes(b"half")
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(DataError, match="is not empty"):
        FolderStore.open(FOCUS, tmp_path, {}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [PART, "thesis.tex"]


def test_names_for_lists_have_no_spaces():
    assert make_file_names(["a b", "c", "d\te"]) == ["a_b", "c", "d_e"]
    with pytest.raises(DataError, match="a_b"):
        make_file_names(["a b", "a_b"])
