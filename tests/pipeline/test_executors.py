"""Frames that are made by other processes, and by a Dask cluster, are the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lifcal.errors import InputError, MissingDependencyError
from lifcal.imaging.files import read_image
from lifcal.imaging.frames import ArrayFrames, open_frames
from lifcal.listener import Listener
from lifcal.metric import MetricOptions
from lifcal.pipeline.executors import _CONNECT_S, WorkerProcesses, connect, open_executor
from lifcal.pipeline.focusing import focus_frames
from lifcal.pipeline.rgbd import RgbdOptions, make_rgbd
from lifcal.virtual import DepthOptions
from tests.cli.process import assert_one_line_error, hear_interrupts, lifcal
from tests.pipeline.cases import make_recording, read_files

FRAMES = 7
MANY = 20
"""Frames of runs that are ended before they are done."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    make_recording(folder, FRAMES)
    return folder


class Told(Listener):
    """Notes what it is told, and does something when the first frame is done."""

    def __init__(self, on_first=lambda: None):
        self.findings, self.steps_done, self._on_first = [], 0, on_first

    @contextmanager
    def steps(self, text, total):
        def step(new_text):
            if new_text in ("focusing", "depth"):
                self.steps_done += 1
                if self.steps_done == 1:
                    self._on_first()

        yield step

    def finding(self, finding):
        self.findings.append(finding.text)


def focus(recording, out, executor=None, listener=None):
    sources = {"grid": recording / "grid.json", "white": recording / "white.png", "xml": None}
    listener = listener or Told()
    frames = open_frames(recording / "raw")
    return focus_frames(frames, out, DepthOptions(), sources, listener, executor), listener


def depth(recording, out, executor=None, listener=None, indices=None):
    listener = listener or Told()
    camera, options = recording / "camera.json", RgbdOptions()
    frames = open_frames(recording / "raw")
    run = make_rgbd(
        frames, out, camera, None, MetricOptions(), options, listener, indices, executor
    )
    return run, listener


VERBS = {"focus": focus, "depth": depth}


@pytest.fixture(scope="module")
def expected(recording, tmp_path_factory):
    """What each verb writes and says if it makes the frames in its own process."""
    found = {}
    for verb, run_verb in VERBS.items():
        out = tmp_path_factory.mktemp("expected") / verb
        run, told = run_verb(recording, out)
        assert len(run.done) == FRAMES - 1
        found[verb] = (read_files(out), told.findings, out)
        assert not [name for name in found[verb][0] if "journal" in name or "part" in name]
    return found


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster


def assert_same(verb, out, told, expected):
    files, findings, _ = expected[verb]
    found = read_files(out)
    assert found.keys() == files.keys()
    assert [name for name in files if found[name] != files[name]] == []
    assert told.findings == findings
    assert told.steps_done == FRAMES


@pytest.mark.parametrize("verb", VERBS)
def test_processes_write_the_same_bytes(recording, expected, verb, tmp_path):
    with WorkerProcesses(2) as executor:
        _, told = VERBS[verb](recording, tmp_path / "out", executor)
    assert_same(verb, tmp_path / "out", told, expected)


@pytest.mark.parametrize("verb", VERBS)
def test_threads_write_the_same_bytes(recording, expected, verb, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        _, told = VERBS[verb](recording, tmp_path / "out", executor)
    assert_same(verb, tmp_path / "out", told, expected)


@pytest.mark.parametrize("verb", VERBS)
def test_a_cluster_writes_the_same_bytes(recording, expected, cluster, verb, tmp_path):
    with connect(cluster.scheduler_address) as executor:
        _, told = VERBS[verb](recording, tmp_path / "out", executor)
    assert_same(verb, tmp_path / "out", told, expected)


def test_a_killed_process_changes_nothing(recording, expected, tmp_path):
    """A process can be killed while it writes, and then leaves a file that is not complete."""

    def kill():
        started[0].kill()
        (tmp_path / "out" / "virtual_depth" / ".1.tiff.x.lifcal-part").touch()

    with WorkerProcesses(2) as executor:
        started = executor._context.started
        told = Told(kill)
        focus(recording, tmp_path / "out", executor, told)
        assert started[0].exitcode == -signal.SIGKILL
    assert_same("focus", tmp_path / "out", told, expected)


def test_a_killed_worker_of_a_cluster_changes_nothing(recording, expected, cluster, tmp_path):
    first = next(iter(cluster.workers.values()))
    told = Told(lambda: os.kill(first.pid, signal.SIGKILL))
    with connect(cluster.scheduler_address) as executor:
        focus(recording, tmp_path / "out", executor, told)
    assert_same("focus", tmp_path / "out", told, expected)


def test_a_run_goes_on_with_another_engine(recording, expected, tmp_path):
    """One frame is cut off, one is missing; the others are kept as they are."""
    out = tmp_path / "out"
    shutil.copytree(expected["focus"][2], out)
    cut = out / "virtual_depth" / "1.tiff"
    cut.write_bytes(cut.read_bytes()[:1000])
    (out / "focused" / "4.png").unlink()
    before = (out / "virtual_depth" / "0.tiff").stat().st_mtime_ns
    with WorkerProcesses(2) as executor:
        run, told = focus(recording, out, executor)
    assert run.kept == FRAMES - 3
    assert_same("focus", out, told, expected)
    assert (out / "virtual_depth" / "0.tiff").stat().st_mtime_ns == before


def test_depth_with_other_frames_uses_the_same_grid_and_vignetting(recording, tmp_path):
    """Frames made in two runs are those of one run, although the second has other frames.

    The camera is one whose lens was moved and whose grid has no overlap discs: grid and vignetting
    are then found in the frames, and each choice of frames would find a little other ones.
    """
    from dataclasses import replace

    from lifcal.camera import read_camera, write_camera

    camera = read_camera(recording / "camera.json")
    lattice = camera.grid.lattice
    moved = replace(lattice, origin_px=lattice.origin_px + np.array([0.0, 0.38]))
    grid = replace(camera.grid.on_lattice(moved, camera.grid.bend), discs=None)
    other = tmp_path / "recording"
    (other / "raw").mkdir(parents=True)
    write_camera(other / "camera.json", replace(camera, grid=grid))
    for index in (0, 1, 3, 4):
        shutil.copy(recording / "raw" / f"{index}.png", other / "raw")
    once, twice, alone = (tmp_path / name for name in ("once", "twice", "alone"))
    _, told = depth(other, once)
    assert any("calibrate again" in text for text in told.findings)
    assert (once / "vignetting.tiff").exists()
    shutil.copytree(once, twice)
    content = json.loads((twice / "depth.json").read_text())
    for name in ("3", "4"):
        del content["frames"][name]
        for folder in ("rgb", "preview", "clouds", "depth_sigma", "depth"):
            next((twice / folder).glob(f"{name}.*")).unlink()
    (twice / "depth.json").write_text(json.dumps(content))
    run, again = depth(other, twice, indices=[2, 3])
    assert run.done == ["3", "4"]
    assert run.kept == 0
    assert again.findings == told.findings
    first, second = read_files(once), read_files(twice)
    images = [name for name in first if "/" in name]
    assert len(images) == 20
    assert [name for name in images if first[name] != second.get(name)] == []
    # The test could fail: these frames alone show a little other grid and vignetting.
    depth(other, alone, indices=[2, 3])
    assert read_files(alone)["grid.json"] != first["grid.json"]
    assert read_files(alone)["vignetting.tiff"] != first["vignetting.tiff"]


def test_frames_in_memory(recording, expected):
    """They are made in this process, to the same pixels, and no other executor is taken."""
    paths = sorted((recording / "raw").iterdir())
    frames = ArrayFrames([read_image(path) for path in paths], [path.stem for path in paths])
    sources = {"grid": recording / "grid.json", "white": recording / "white.png", "xml": None}
    run = focus_frames(frames, None, DepthOptions(), sources, Told())
    folder = expected["focus"][2]
    assert run.done == [str(i) for i in range(FRAMES) if i != 2]
    for name in run.done:
        np.testing.assert_array_equal(
            run.store.images.load(name, "u"), read_image(folder / "virtual_depth" / f"{name}.tiff")
        )
        np.testing.assert_array_equal(
            run.store.images.load(name, "focused"), read_image(folder / "focused" / f"{name}.png")
        )
    with (
        WorkerProcesses(2) as executor,
        pytest.raises(InputError, match="in this process only"),
    ):
        focus_frames(frames, None, DepthOptions(), sources, Told(), executor)


# The command line


def list_marked(mark):
    """Return the processes whose environment holds a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_for_end(mark):
    deadline = time.monotonic() + 60.0
    while list_marked(mark):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.1)


def start(recording, out, mark):
    raws = out.parent / "raw"
    raws.mkdir()
    for index in range(MANY):
        shutil.copy(recording / "raw" / f"{index % 2}.png", raws / f"{index}.png")
    words = ["focus", raws, "--grid", recording / "grid.json", "-o", out, "--jobs", 2, "--quiet"]
    return words, subprocess.Popen(
        [sys.executable, "-m", "lifcal", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LIFCAL_TEST_MARK": mark},
        preexec_fn=hear_interrupts,
        start_new_session=True,
    )


def wait_for(path, process):
    deadline = time.monotonic() + 200
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


needs_proc = pytest.mark.skipif(not Path("/proc").exists(), reason="lists processes by /proc")


@needs_proc
@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "one process"])
def test_an_interrupt_ends_all_processes(recording, tmp_path, whole_group):
    out, mark = tmp_path / "out", uuid.uuid4().hex
    _, process = start(recording, out, mark)
    wait_for(out / "virtual_depth" / "1.tiff", process)
    if whole_group:  # as a terminal does
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines() == ["lifcal: interrupted: the same command goes on from here"]
    wait_for_end(mark)
    assert not list(out.rglob(".*"))
    assert not (out / "focus.journal").exists()
    assert len(json.loads((out / "focus.json").read_text())["frames"]) < MANY


@needs_proc
def test_a_killed_run_leaves_no_process_and_goes_on(recording, tmp_path):
    out, mark = tmp_path / "out", uuid.uuid4().hex
    words, process = start(recording, out, mark)
    wait_for(out / "virtual_depth" / "3.tiff", process)
    process.kill()
    process.communicate(timeout=60)
    wait_for_end(mark)
    done = lifcal(*words)
    assert done.returncode == 0, done.stderr
    assert f"{MANY} frames (" in done.stdout
    assert not list(out.rglob(".*"))
    assert len(json.loads((out / "focus.json").read_text())["frames"]) == MANY


def test_the_command_line_on_a_cluster(recording, expected, cluster, tmp_path):
    out = tmp_path / "out"
    files = ("--grid", recording / "grid.json", "--white", recording / "white.png")
    done = lifcal(
        *("focus", "raw", *files, "-o", os.path.relpath(out, recording)),
        *("--scheduler", cluster.scheduler_address),
        cwd=recording,  # relative paths: the workers are in another folder
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("lifcal: error: raw/2.png: black")
    assert done.stderr.splitlines()[1:] == ["lifcal: error: 1 of 7 frames could not be done"]
    found, files = read_files(out), expected["focus"][0]
    names = [name for name in files if name != "focus.json"]  # the raws' paths are in it
    assert [name for name in names if found[name] != files[name]] == []


def test_what_is_wrong_with_an_executor_is_one_line(recording, tmp_path):
    words = ("focus", recording / "raw", "-o", tmp_path / "out")
    both = lifcal(*words, "--jobs", 2, "--scheduler", "tcp://127.0.0.1:1")
    assert_one_line_error(both, "give only one")
    for verb, more in (
        ("focus", ()),
        ("depth", ("--camera", recording / "camera.json")),
        ("calibrate", ("--pixel-size-um", 5.5)),
    ):
        done = lifcal(verb, *words[1:], *more, "--jobs", 0)
        assert_one_line_error(done, "--jobs is 0, needs at least 1")
    done = lifcal(*words, "--scheduler", "tcp://127.0.0.1:1")
    assert_one_line_error(done, "--scheduler tcp://127.0.0.1:1: no Dask scheduler answers there")
    for address in ("nonsense://x:1", "host", "8786"):
        done = lifcal(*words, "--scheduler", address)
        assert_one_line_error(done, f"--scheduler {address}: not an address like tcp://host:8786")
    assert 2.0 * _CONNECT_S <= 10.0  # to the scheduler, and until it has a worker
    assert not (tmp_path / "out").exists()


def test_a_cluster_without_workers_is_one_line(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("lifcal.pipeline.executors._CONNECT_S", 1.0)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as empty,
        pytest.raises(Exception, match="the cluster has no worker"),
        connect(empty.scheduler_address),
    ):
        pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingDependencyError, match=r"lifcal\[cluster\]"),
        open_executor(scheduler="tcp://127.0.0.1:1"),
    ):
        pass
