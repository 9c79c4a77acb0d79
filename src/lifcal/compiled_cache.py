"""Where numba keeps compiled loops: a folder that can be written, and files that can be read.

Numba keeps them in the folder that `NUMBA_CACHE_DIR` names, beside the source, or in the user's own
cache, whichever of these can be written first. Where none can (a package that root installed, used
by an account without a home), importing a compiled loop would fail. `prepare` then names a private
folder for temporary files. `mend` has files removed that are damaged, and what they held compiled
anew.
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
"""What to tell the user of the folder; empty if it is one of numba's own."""


def prepare() -> None:
    """Name a private temporary folder if numba has none that can be written."""
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
    if "numba" in sys.modules:  # it has read the environment already
        sys.modules["numba"].config.reload_config()


def _list_places() -> list[list[Path]]:
    """Return the places that numba tries, in its order: in each, all folders must be writable."""
    package = Path(__file__).parent
    given = os.environ.get(_VARIABLE)
    rooms = {file.parent / "__pycache__" for file in package.glob("*/_kernels*.py")}
    home = Path("~").expanduser()  # stays as it is for an account that has none
    mac = home / "Library" / "Caches"
    usual = mac if sys.platform == "darwin" else home / ".cache"
    user = Path(os.environ.get("XDG_CACHE_HOME", usual))
    return [
        [Path(given)] if given else [],
        sorted(rooms),
        [user] if user.is_absolute() else [],
    ]


def _is_writable(folders: list[Path]) -> bool:
    """Tell whether all folders can be written, or made; False for no folder."""
    for folder in folders:
        place = folder
        while not place.exists() and place != place.parent:
            place = place.parent
        if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            return False
    return bool(folders)


def _make_private() -> Path | None:
    """Return a folder that only this user can write: who can write there runs code as the user."""
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
    """Return a folder of another name, which is removed when the process ends."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="lifcal-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def mend() -> None:
    """Have damaged files of the cache removed, and said, where numba would raise an exception."""
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
                "%s: was damaged (%s) and is removed; what it held is compiled anew",
                index,
                type(error).__name__,
            )
            return None

    load.removes_damaged = True  # type: ignore[attr-defined]
    IndexDataCacheFile.load = load  # type: ignore[method-assign]
