"""The command line as a user meets it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import (
    assert_one_line_error,
    interrupt,
    lifcal,
    limit_file_size,
    read_help,
)

SOURCE = Path(__file__).parents[2] / "src"


SIMULATE = ["simulate", "--camera", "mini", "--scene", "wall", "--frames", 2, "--rays", 1]


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "out"
    done = lifcal(*SIMULATE, "-o", folder)
    assert done.returncode == 0, done.stderr
    assert "2 frames of mini in wall" in done.stdout
    return folder


def test_help_and_version():
    done = lifcal("--help")
    assert done.returncode == 0
    for word in ("demo", "simulate", "camera"):
        assert word in done.stdout
    assert lifcal("--version").stdout.startswith("lifcal ")
    assert lifcal("simulate", "--help").returncode == 0
    assert lifcal("camera", "show", "--help").returncode == 0


def test_help_imports_nothing_heavy():
    assert "demo" in read_help()


def test_usage_errors_exit_with_2():
    assert lifcal("simulate").returncode == 2
    assert lifcal("nonsense").returncode == 2
    assert lifcal(*SIMULATE, "-o", "x", "--frames", "many").returncode == 2


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--scene", "kitchen", ["unknown scene 'kitchen'", "desk, room"]),
        ("--camera", "r5-16", ["Did you mean 'r5-16mm'?"]),
        ("--path", "spiral", ["unknown path 'spiral'"]),
        ("--frames", 0, ["frames is 0"]),
        ("--rays", 0, ["rays per pixel is 0"]),
        ("--bits", 32, ["bits is 32"]),
        ("--bayer", "rgb", ["unknown Bayer pattern 'rgb'"]),
        ("--exposure", -1, ["exposure is -1"]),
        ("--scene-scale", 0, ["scene_scale is 0"]),
        ("--scene-scale", "inf", ["scene_scale is inf"]),
        ("--micro-aperture", "nan", ["micro_aperture is nan"]),
    ],
)
def test_wrong_simulations_write_nothing(option, value, words, tmp_path):
    folder = tmp_path / "out"
    assert_one_line_error(lifcal(*SIMULATE, "-o", folder, option, value), *words)
    assert not folder.exists()


def test_a_folder_in_use_is_kept(recording):
    done = lifcal(*SIMULATE, "-o", recording, "--seed", 9)
    assert_one_line_error(done, "holds another simulation (seed is 1, not 9)")


def test_a_name_that_is_too_long_is_one_line():
    assert_one_line_error(lifcal(*SIMULATE, "-o", "a" * 300), "cannot use this folder")


def test_the_help_names_everything_that_can_be_simulated():
    from lifcal.simulate import CAMERAS, PATHS, SCENES

    done = lifcal("simulate", "--help", env={**os.environ, "COLUMNS": "400"})
    text = " ".join(done.stdout.split())
    for name in [*CAMERAS, *SCENES, *PATHS]:
        assert name in text, name


def test_imperfections_of_a_simulation(tmp_path):
    done = lifcal(
        *SIMULATE, "--frames", 1, "--tilt", 0.03, -0.02, "--object-distortion", 0.02, 0,
        "--gamma", 2.2, "--compression", "jpeg", "-o", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "out" / "simulation.json").read_text())["imperfections"]
    assert (made["tilt_x_deg"], made["tilt_y_deg"]) == (0.03, -0.02)
    assert (made["object_distortion_a"], made["gamma"]) == (0.02, 2.2)
    assert (tmp_path / "out" / "raw" / "0000.jpg").is_file()
    fit = json.loads((tmp_path / "out" / "truth" / "best_fit.json").read_text())
    assert fit["best_fit"]["rms_px"] < 0.01
    assert_one_line_error(
        lifcal(*SIMULATE, "--tilt", 3, 0, "-o", tmp_path / "no"), "tilt_x_deg is 3.0"
    )
    assert_one_line_error(
        lifcal(*SIMULATE, "--camera", "minireal", "-o", tmp_path / "no"), "mini-real"
    )


def test_the_same_command_again_is_quick_and_changes_nothing(recording):
    before = {path: path.stat().st_mtime_ns for path in (recording / "raw").iterdir()}
    assert lifcal(*SIMULATE, "-o", recording).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (recording / "raw").iterdir()} == before


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_exits_with_130_and_leaves_whole_files(tmp_path, by):
    folder = tmp_path / "out"
    command = [*SIMULATE[:-1], 64, "--frames", 500, "-o", folder]
    errors = interrupt(folder / "raw" / "0000.png", *command, by=by)
    assert "interrupted" in errors
    assert not list(folder.rglob(".*"))  # no half-written temporary file


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    assert_one_line_error(lifcal(*SIMULATE, "-o", tmp_path / "out"), "cannot write")


def test_a_full_disk_is_one_line(tmp_path):
    done = lifcal(*SIMULATE, "-o", tmp_path / "out", preexec_fn=limit_file_size)
    assert_one_line_error(done, "cannot write")
    assert not list((tmp_path / "out").rglob(".*"))


def test_a_full_standard_output_is_one_line(recording, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    # Python writes what it has buffered when it ends, unless this variable is set.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for name in ("focus.json", "camera.json"):
        (tmp_path / name).touch()
    camera = recording / "truth" / "camera.json"
    for words in (
        ("camera", "show", camera),
        ("camera", "show", camera, "--json"),  # more than the buffer holds
        ("clean", tmp_path, "--dry-run", "--json"),  # less than that
    ):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "lifcal", *map(str, words)]
            done = subprocess.run(
                command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered
            )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "no space left for standard output" in done.stderr


def test_camera_show(recording):
    done = lifcal("camera", "show", recording / "truth" / "camera.json")
    assert done.returncode == 0
    for word in ("f_L", "16.748", "alpha", "hexagonal", "simulation"):
        assert word in done.stdout
    content = json.loads(lifcal("camera", "show", "--json", recording / "truth/camera.json").stdout)
    assert content["intrinsics"]["f_L"] == {"value": 16.748, "sigma": None, "unit": "mm"}
    grid = lifcal("camera", "show", recording / "truth" / "grid.json")
    assert "hexagonal" in grid.stdout


def test_camera_convert_there_and_back(recording, tmp_path):
    camera, xml, back = recording / "truth/camera.json", tmp_path / "c.xml", tmp_path / "c.json"
    assert lifcal("camera", "convert", camera, xml).returncode == 0
    assert_one_line_error(lifcal("camera", "convert", xml, back), "--grid FILE")
    assert not back.exists()
    done = lifcal("camera", "convert", xml, back, "--grid", recording / "truth" / "grid.json")
    assert done.returncode == 0, done.stderr
    there, again = (json.loads(path.read_text()) for path in (camera, back))
    for name, item in there["intrinsics"].items():
        assert again["intrinsics"][name]["value"] == pytest.approx(item["value"], rel=1e-12)
    assert again["scale_source"] is None  # the XML does not say


def test_camera_convert_refuses_what_does_not_fit(recording, tmp_path):
    camera, grid = recording / "truth/camera.json", tmp_path / "grid.json"
    xml, out = tmp_path / "calib.xml", tmp_path / "out.json"
    xml.write_text(RAYTRIX)
    assert lifcal("camera", "convert", xml, grid, "--image-size", "500x400").returncode == 0
    for arguments, word in (
        ((camera, out, "--grid", grid), "500 x 400 px"),
        ((camera, out, "--image-size", "100x100"), "not 100x100"),
        ((grid, out, "--grid", grid), "leave --grid away"),
        ((grid, tmp_path / "out.xml"), "a grid only"),
        ((camera, tmp_path / "out.txt"), "needs .json or .xml"),
    ):
        assert_one_line_error(lifcal("camera", "convert", *arguments), word)
    assert not out.exists()


RAYTRIX = """<RayCalibData version="1.0"><offset units="pix"><x>3</x><y>-2</y></offset>
<diameter>23.2</diameter><rotation>0.001</rotation><lens_border>1</lens_border></RayCalibData>"""


def test_camera_convert_raytrix(tmp_path):
    xml, out = tmp_path / "calib.xml", tmp_path / "grid.json"
    xml.write_text(RAYTRIX)
    assert "23.2" in lifcal("camera", "show", xml).stdout
    assert_one_line_error(lifcal("camera", "convert", xml, out), "--image-size WIDTHxHEIGHT")
    assert_one_line_error(
        lifcal("camera", "convert", xml, out, "--image-size", "2048"), "WIDTHxHEIGHT"
    )
    done = lifcal("camera", "convert", xml, out, "--image-size", "0x5")
    assert_one_line_error(done, "image_size")
    assert not out.exists()
    assert lifcal("camera", "convert", xml, out, "--image-size", "2048x1088").returncode == 0
    grid = json.loads(out.read_text())
    assert grid["origin_px"] == pytest.approx([1026.5, 545.5])


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY a{i} "{"&a" + (str(i - 1) if i else "") + ";"}">' for i in range(9))
    + "]><RayCalibData>&a8;</RayCalibData>"
)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("bomb.xml", BOMB, "bomb.xml"),
        ("cut.xml", RAYTRIX[:90], "cut.xml"),
        ("nodes.xml", RAYTRIX.replace("diameter", "size"), "diameter"),
        ("photo.png", "\x89PNG....", "no camera file that lifcal knows"),
        ("page.xml", "<html><body/></html>", "no camera file that lifcal knows"),
        ("empty.json", "", "no camera file that lifcal knows"),
        ("list.json", "[]", "no camera file that lifcal knows"),
        ("cut.json", '{"format": "lifcal-cam', "not valid JSON"),
    ],
)
def test_bad_camera_files_are_one_line(name, content, word, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    assert_one_line_error(lifcal("camera", "show", path), word)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("f_L", -16.0, ["f_L", "-16.0"]),
        ("B", 20.0, ["b_L0", "swapped"]),
    ],
)
def test_impossible_cameras_are_one_line(key, value, words, recording, tmp_path):
    content = json.loads((recording / "truth" / "camera.json").read_text())
    content["intrinsics"][key]["value"] = value
    del content["pinhole_array"]
    path = tmp_path / "camera.json"
    path.write_text(json.dumps(content))
    assert_one_line_error(lifcal("camera", "show", path), *words)


def test_an_empty_image_is_one_line(recording, tmp_path):
    content = json.loads((recording / "truth" / "camera.json").read_text())
    content["image_size_px"] = content["grid"]["image_size_px"] = [0, 480]
    path = tmp_path / "camera.json"
    path.write_text(json.dumps(content))
    assert_one_line_error(lifcal("camera", "show", path), "image_size", "0")


def test_debug_shows_the_trace_wherever_it_stands(tmp_path):
    done = lifcal("camera", "show", tmp_path / "nothing.json", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_demo_of_too_few_frames(tmp_path):
    """The whole demo is a minute: .ci/run has it. The recording and its picture are there first."""
    done = lifcal("demo", "-o", tmp_path / "demo", "--frames", 1)
    assert_one_line_error(done, "1 usable frames are too few (need 5)")
    assert (tmp_path / "demo" / "overview.png").stat().st_size > 100_000
    assert not (tmp_path / "demo" / "calibration" / "camera.json").exists()
