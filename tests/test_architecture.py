"""The order of the rooms, and the doors to other libraries, as data; the imports must obey."""

import ast
import fnmatch
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lifcal"

# Bottom to top: a room may use those before it.
ROOMS = [
    "errors",
    "compiled_cache",
    "arrays",
    "files",
    "sources",
    "image_headers",
    "distances",
    "threads",
    "diagnostics",
    "ply",
    "plots",
    "listener",
    "geometry",
    "camera",
    "imaging",
    "grid",
    "simulate",
    "virtual",
    "sfm",
    "reconstruction",
    "measure",
    "bundle",
    "scale",
    "calibration",
    "metric",
    "export",
    "evaluate",
    "report",
    "pipeline",
    "cli",
]

# Which rooms may import a library.
DOORS = {
    "cv2": {"imaging", "grid"},
    "typer": {"cli"},
    "rich": {"cli"},
    "defusedxml": {"camera"},
    "evo": set(),
    "pycolmap": {"sfm"},
    "open3d": {"metric"},
    "distributed": {"pipeline"},
    "matplotlib": {"plots"},
    "IPython": {"listener"},
    "numba": {
        "bundle",
        "camera",
        "compiled_cache",
        "geometry",
        "grid",
        "measure",
        "metric",
        "sfm",
        "simulate",
        "threads",
        "virtual",
    },
}

# Imports upwards, and why. They are inside a function, so that nothing is loaded in a circle.
UPWARDS = {
    ("camera", "lifcal.metric.engine.DepthEngine"): "camera.depth(raw), for those who have a camera"
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(text: str, *, at_load: bool = False) -> set[str]:
    """Names that are imported; only those outside functions and classes if `at_load`."""
    found = set()
    tree = ast.parse(text)
    for node in tree.body if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def breaches(room: str, text: str) -> list[str]:
    found = []
    for name in imports_of(text):
        first, *rest = name.split(".")
        if first == "lifcal" and rest and rest[0] in ROOMS:
            if (room, name) in UPWARDS and name not in imports_of(text, at_load=True):
                continue
            if room in ROOMS and ROOMS.index(rest[0]) > ROOMS.index(room):
                found.append(f"{room} uses {rest[0]}, which is above it")
        elif first in DOORS and room not in DOORS[first]:
            found.append(f"{room} imports {first}, whose door is {sorted(DOORS[first])}")
    return found


MODULES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name[:2] != "__"
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_use_only_what_is_below(path):
    assert breaches(room_of(path), path.read_text(encoding="utf-8")) == []


# Rooms whose constants all have a reason beside them, as a string below the assignment.
EXPLAINED = ["bundle", "calibration", "grid", "measure", "metric", "scale", "sfm"]


def unexplained(text: str) -> list[str]:
    """Names of module constants without a reason of whole sentences below them."""
    found = []
    body = ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        first = target.elts[0] if isinstance(target, ast.Tuple) else target
        name = first.id if isinstance(first, ast.Name) else ""
        if len(name) < 2 or not name.isupper():
            continue
        reason = ast.unparse(after.value).strip("'\"") if isinstance(after, ast.Expr) else ""
        if len(reason.split()) < 4 or not reason.endswith(".") or reason.startswith("Of "):
            found.append(name)
    return found


@pytest.mark.parametrize("room", EXPLAINED)
def test_constants_have_a_reason(room):
    for path in sorted((SOURCE / room).glob("*.py")):
        if not path.name.startswith("_kernels"):
            assert unexplained(path.read_text(encoding="utf-8")) == [], path.name


def test_the_search_for_reasons_can_fail():
    assert unexplained('A_B = 3\n"""Number of letters that a word has."""') == []
    assert unexplained("A_B = 3") == ["A_B"]
    assert unexplained('A_B, C = 3, 4\n"""Of words: the number of letters."""') == ["A_B"]
    assert unexplained('A_B: int = 3\n"""Letters."""\nx = 1') == ["A_B"]


KERNELS = [path for path in MODULES if path.name.startswith("_kernels")]
MOST_ARGUMENTS = 12


def test_only_kernels_are_compiled():
    allowed = ("compiled_cache.py", "threads.py")
    for path in MODULES:
        names = {name.split(".")[0] for name in imports_of(path.read_text(encoding="utf-8"))}
        assert "numba" not in names or path in KERNELS or path.name in allowed, path


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_loops_take_packs_instead_of_many_arguments(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            assert len(node.args.args) <= MOST_ARGUMENTS, node.name


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_type_checker_knows_kernels(path):
    """Numba infers their types; mypy's patterns cannot say `_kernels*`, so each is listed."""
    settings = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    listed = [name for each in settings["tool"]["mypy"]["overrides"] for name in each["module"]]
    name = ".".join(["lifcal", *path.relative_to(SOURCE).with_suffix("").parts])
    assert any(fnmatch.fnmatch(name, pattern) for pattern in listed)


def test_every_room_is_listed():
    assert {room_of(path) for path in MODULES} == set(ROOMS)


def test_the_walker_can_fail():
    assert breaches("camera", "from lifcal.simulate import Optics")
    assert breaches("camera", "def f():\n    import cv2")
    assert not breaches("simulate", "from lifcal.camera import PlenopticCamera")
    upwards = "from lifcal.metric.engine import DepthEngine"
    assert breaches("camera", upwards)
    assert not breaches("camera", f"def f():\n    {upwards}")
    assert breaches("geometry", f"def f():\n    {upwards}")
