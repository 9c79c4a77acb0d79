"""What a run has done so far, in a folder and in memory."""

import json
from pathlib import Path

import numpy as np
import pytest

from lifcal.camera import read_grid, write_grid
from lifcal.diagnostics import Finding
from lifcal.errors import DataError
from lifcal.files import write_json
from lifcal.pipeline.focusing import FOCUS, FocusEntry, FocusSetup
from lifcal.pipeline.store import FolderStore, MemoryStore, SharedArrays, digest_grid
from lifcal.simulate import build_camera

SETTINGS = {"scale": 0.5}
PATTERNS = {"focused": "focused/{}.png", "u": "virtual_depth/{}.tiff"}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A grid as it is read from a file; grid.json holds deviations in steps of 0.001 px."""
    path = tmp_path_factory.mktemp("grid") / "grid.json"
    write_grid(path, build_camera("mini").camera.grid)
    return read_grid(path)


def begin(folder, grid, vignetting=None):
    store = FolderStore.open(FOCUS, folder, SETTINGS, PATTERNS)
    figures = {"source": "file", "checksum": digest_grid(grid)}
    setup = FocusSetup((2.0, 4.0), figures, (Finding.of("no-scale", "none"),))
    store.begin(setup, SharedArrays(grid, vignetting))
    return store


def entry(index):
    return FocusEntry(f"raw/{index:05d}.png", f"{index:08x}", 1000 + index, 0.9, 3.0, 0.01)


def open_again(folder):
    return FolderStore.open(FOCUS, folder, SETTINGS, PATTERNS)


def test_a_killed_run_goes_on_from_its_journal(tmp_path, grid, rng):
    vignetting = rng.random(grid.image_size[::-1], dtype=np.float32)
    store = begin(tmp_path, grid, vignetting)
    for index in range(3):
        store.add(str(index), entry(index))
    assert json.loads((tmp_path / "focus.json").read_text())["frames"] == {}
    with (tmp_path / "focus.journal").open("ab") as stream:
        stream.write(b'{"name": "3", "raw": "ra')  # killed in the middle of a line
    again = open_again(tmp_path)
    assert again.entries == {str(index): entry(index) for index in range(3)}
    assert again.setup == store.setup
    assert digest_grid(again.shared.grid) == digest_grid(grid)
    np.testing.assert_array_equal(again.shared.grid.centers_raw_px, grid.centers_raw_px)
    np.testing.assert_array_equal(again.shared.vignetting, vignetting)
    again.begin(again.setup, again.shared)
    again.add("3", entry(3))
    again.finish(["3", "2", "1", "0", "4"], {4: DataError("black")})
    assert not (tmp_path / "focus.journal").exists()
    content = json.loads((tmp_path / "focus.json").read_text())
    assert list(content["frames"]) == ["3", "2", "1", "0"]
    assert content["failed"] == {"4": "black"}
    assert open_again(tmp_path).entries == again.entries


def test_a_damaged_journal_is_said(tmp_path, grid):
    begin(tmp_path, grid)
    for text in ("no JSON\n", "{}\n", '{"name": "0"}\n', "[]\n"):
        (tmp_path / "focus.journal").write_text(text)
        with pytest.raises(DataError, match="changed or damaged"):
            open_again(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts bytes written")
def test_the_record_costs_as_much_for_each_frame_however_many_there_are(tmp_path, grid):
    """Bytes that the process wrote, as the system counts them."""

    def count():
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("wchar:")).split()[1])

    costs = {}
    for frames in (100, 400):
        store = begin(tmp_path / str(frames), grid)
        before = count()
        for index in range(frames):
            store.add(f"{index:05d}", entry(index))
        store.finish([f"{index:05d}" for index in range(frames)], {})
        costs[frames] = (count() - before) / frames
    # A line of 130 bytes in the journal, some 220 in the record, and its head once. Writing the
    # record for every frame would cost 11 and 44 kB a frame.
    assert 100 < costs[100] < 1000
    assert costs[400] < 1.1 * costs[100]


def test_a_run_without_any_frame_leaves_nothing_behind(tmp_path, grid):
    store = begin(tmp_path / "out", grid)
    assert (tmp_path / "out" / "focus.json").exists()
    store.finish(["0"], {0: DataError("black")})
    assert list((tmp_path / "out").iterdir()) == []
    assert store.failed == {"0": "black"}


def test_the_report_of_a_failure_does_not_block_the_folder(tmp_path):
    """The corrected command may use the folder; a finished calibration without focus.json not."""
    for name in ("summary.json", "report.html", "distances.txt"):
        (tmp_path / name).touch()
    assert open_again(tmp_path).setup is None
    (tmp_path / "camera.json").touch()
    with pytest.raises(DataError, match="is not empty"):
        open_again(tmp_path)


def test_a_changed_array_is_refused(tmp_path, grid):
    store = begin(tmp_path, grid, np.ones(grid.image_size[::-1], np.float32))
    store.add("0", entry(0))
    (tmp_path / "vignetting.tiff").unlink()
    with pytest.raises(DataError, match=r"vignetting.tiff: no such file"):
        open_again(tmp_path)
    from lifcal.imaging.files import write_float_tiff

    write_float_tiff(tmp_path / "vignetting.tiff", np.zeros(grid.image_size[::-1], np.float32))
    with pytest.raises(DataError, match=r"vignetting.tiff: was changed after focus.json"):
        open_again(tmp_path)


def test_folders_of_earlier_versions_are_read(tmp_path, grid):
    """Their record has no check sums of arrays besides that among the figures of the grid."""
    store = begin(tmp_path, grid)
    store.add("0", entry(0))
    store.finish(["0"], {})
    content = json.loads((tmp_path / "focus.json").read_text())
    del content["shared"]
    write_json(tmp_path / "focus.json", content)
    again = open_again(tmp_path)
    assert again.entries == store.entries
    assert digest_grid(again.shared.grid) == digest_grid(grid)
    (tmp_path / "grid.json").unlink()  # killed before it was written: begin anew
    assert open_again(tmp_path).setup is None


def test_a_store_in_memory():
    store = MemoryStore(FOCUS, SETTINGS)
    image = np.ones((2, 3), np.uint8)
    assert store.images.measure("0") == -1
    assert store.images.save("0", {"focused": image}) == 6
    assert store.images.load("0", "focused") is image
    store.add("0", entry(0))
    store.finish(["0", "1"], {1: DataError("black")})
    assert store.as_dict()["frames"] == {"0": entry(0).as_dict()}
    assert store.failed == {"1": "black"}
