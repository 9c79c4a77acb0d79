"""The cache of compiled loops: where nothing can be written, and where a file is damaged."""

import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from numba import config, njit

import lifcal
from lifcal import compiled_cache

PACKAGE = Path(lifcal.__file__).parent

pytestmark = pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")


def add_one(x):
    return x + 1


@pytest.fixture
def cache_at(monkeypatch):
    """Have numba keep loops elsewhere."""

    def move(folder):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        config.reload_config()

    yield move
    monkeypatch.undo()
    config.reload_config()


@pytest.fixture
def nowhere(cache_at, monkeypatch, tmp_path):
    """As an account without a home that uses a package of root."""
    monkeypatch.setattr(compiled_cache, "note", "")
    monkeypatch.setattr(compiled_cache, "_is_writable", lambda folders: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache_at("/dev/null/none")
    return tmp_path


def test_a_private_folder_takes_the_place_of_one_that_cannot_be_written(nowhere):
    compiled_cache.prepare()
    folder = nowhere / f"lifcal-cache-{os.getuid()}"
    assert os.environ["NUMBA_CACHE_DIR"] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert f"are kept in {folder}" in compiled_cache.note
    assert njit(cache=True)(add_one)(1) == 2
    assert list(folder.rglob("*.nbi"))


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_folder_that_others_could_write_is_not_used(nowhere, kind):
    """Compiled loops are code: whoever can write there runs code as this user."""
    name = nowhere / f"lifcal-cache-{os.getuid()}"
    if kind == "link":
        (nowhere / "other").mkdir()
        name.symlink_to(nowhere / "other")
    elif kind == "open":
        name.mkdir()
        name.chmod(0o777)
    else:
        name.touch()
    compiled_cache.prepare()
    if kind == "file":
        assert compiled_cache.note == ""
        return
    used = Path(os.environ["NUMBA_CACHE_DIR"])
    assert used.parent == nowhere
    assert used != name
    assert stat.S_IMODE(used.stat().st_mode) == 0o700


def test_one_writable_place_is_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled_cache, "note", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new" / "folder"))
    compiled_cache.prepare()
    assert compiled_cache.note == ""
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "new" / "folder")


def test_an_account_without_a_home_has_no_cache_of_its_own(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", lambda path: path)
    _given, rooms, user = compiled_cache._list_places()
    assert user == []
    assert PACKAGE / "camera" / "__pycache__" in rooms
    assert not compiled_cache._is_writable([])
    assert not compiled_cache._is_writable([Path("/dev/null/none")])


def test_read_only_install_and_no_home(tmp_path):
    """A process of its own: one note, and the loop is compiled."""
    install, temporary = tmp_path / "install", tmp_path / "temporary"
    shutil.copytree(PACKAGE, install / "lifcal", ignore=shutil.ignore_patterns("__pycache__"))
    temporary.mkdir()
    command = [sys.executable, "-c", _SORT]
    if os.getuid() == 0:  # whom permissions do not hold back
        command = [*_as_nobody(), *command]
        os.chown(temporary, 65534, 65534)
        tmp_path.chmod(0o755)
    else:
        for folder in [install, *install.rglob("*")]:
            folder.chmod(folder.stat().st_mode & ~0o222)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": str(install),
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        command, env=environment, cwd=temporary, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(install), "2.0"]
    assert done.stderr.count("compiled loops are kept in") == 1
    assert list(temporary.rglob("*.nbi"))


_SORT = """
import logging
from pathlib import Path

import numpy as np

logging.basicConfig()

import lifcal
import lifcal.threads
from lifcal.geometry._kernels import take_median

print(Path(lifcal.__file__).parents[1], take_median(np.array([3.0, 1.0, 2.0])))
"""


def _as_nobody():
    """Return what runs a command as nobody, who may read what root may but write nothing."""
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    words += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("root cannot become another user here")
    return words


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_file_is_removed_and_said(cache_at, tmp_path, caplog, suffix, share):
    cache_at(tmp_path)
    compiled_cache.mend()
    assert njit(cache=True)(add_one)(np.int64(1)) == 2
    (path,) = tmp_path.rglob(f"*{suffix}")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with caplog.at_level(logging.WARNING, "lifcal.compiled_cache"):
        assert njit(cache=True)(add_one)(np.int64(1)) == 2
    assert "was damaged" in caplog.text
    assert path.name.split(".")[0] in caplog.text
    caplog.clear()
    again = njit(cache=True)(add_one)
    assert again(np.int64(1)) == 2
    assert not caplog.text
    assert sum(again.stats.cache_hits.values()) == 1
