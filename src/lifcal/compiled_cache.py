"""The folder in which numba stores compiled loops, and the removal of damaged files in it.

Numba uses the first of these folders that can be written: the one that `NUMBA_CACHE_DIR` names, the
folder of the source files, the cache folder of the user. If none can be written (for example if
root installed the package and the account has no home folder), importing a compiled loop would
fail. `prepare` then sets `NUMBA_CACHE_DIR` to a private temporary folder. `mend` makes numba remove
damaged files and compile their loops again.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

LOG = logging.getLogger("lifcal.compiled_cache")
_VARIABLE = "NUMBA_CACHE_DIR"

note = ""
"""Message to the user about a temporary folder; empty if numba uses one of its usual folders."""


def prepare() -> None:
    """Make numba use a private temporary folder if it can write to none of its usual folders."""
    global note
    if os.name == "nt" or any(map(_is_writable, _list_places())):
        return
    folder = _make_private()
    if folder is None:
        return
    note = (
        f"compiled loops are kept in {folder}, because neither the folder of the package nor the "
        f"cache of the user can be written. Set {_VARIABLE} to a folder that lasts, and later runs "
        "need not compile"
    )
    os.environ[_VARIABLE] = str(folder)
    if "numba" in sys.modules:  # numba has already read the environment variables
        sys.modules["numba"].config.reload_config()


def _list_places() -> list[list[Path]]:
    """Return the choices that numba tries, in its order; each needs all its folders writable."""
    package = Path(__file__).parent
    given = os.environ.get(_VARIABLE)
    rooms = {file.parent / "__pycache__" for file in package.glob("*/_kernels*.py")}
    home = Path("~").expanduser()  # remains "~" for an account without a home folder
    mac = home / "Library" / "Caches"
    usual = mac if sys.platform == "darwin" else home / ".cache"
    user = Path(os.environ.get("XDG_CACHE_HOME", usual))
    return [
        [Path(given)] if given else [],
        sorted(rooms),
        [user] if user.is_absolute() else [],
    ]


def _is_writable(folders: list[Path]) -> bool:
    """Tell whether all folders can be written or created; False for an empty list."""
    for folder in folders:
        place = folder
        while not place.exists() and place != place.parent:
            place = place.parent
        if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            return False
    return bool(folders)


def _make_private() -> Path | None:
    """Return a temporary folder that only this user can write, or None if none can be created.

    Whoever can write to the cache can make this user's programs run other code.
    """
    import tempfile

    try:
        folder = Path(tempfile.gettempdir()) / f"lifcal-cache-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        private = found.st_uid == os.getuid() and not found.st_mode & 0o077
        if private and folder.is_dir() and not folder.is_symlink():
            return folder
        return _make_passing()
    except OSError:  # not even temporary files can be written
        return None


def _make_passing() -> Path:
    """Return a folder with a random name, which is removed when the process ends."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="lifcal-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def mend() -> None:
    """Make numba remove damaged cache files with a warning, instead of raising an exception."""
    from numba.core.caching import IndexDataCacheFile

    original = IndexDataCacheFile.load
    if getattr(original, "removes_damaged", False):
        return

    def load(self: Any, key: Any) -> Any:
        try:
            return original(self, key)  # type: ignore[no-untyped-call]
        except Exception as error:  # reading a damaged pickle raises nearly anything
            index = Path(self._index_path)
            for path in index.parent.glob(f"{index.stem}.*"):
                path.unlink(missing_ok=True)
            LOG.warning(
                "%s: was damaged (%s) and has been removed; its loop is compiled again",
                index,
                type(error).__name__,
            )
            return None

    load.removes_damaged = True  # type: ignore[attr-defined]
    IndexDataCacheFile.load = load  # type: ignore[method-assign]
