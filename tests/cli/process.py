"""The command line in a process of its own."""

import re
import resource
import signal
import subprocess
import sys
import time

HEAVY = ("cv2", "evo", "numba", "numpy", "pycolmap", "scipy")


def lifcal(*arguments, **options):
    """Run a command; return what it said, without the lines that tell how far it is."""
    done = subprocess.run(
        [sys.executable, "-m", "lifcal", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    done.stderr = drop_progress(done.stderr)
    return done


def drop_progress(text):
    """Return the lines that do not begin with the seconds since the command began."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"\[ *\d+ s\] ", line))


def assert_one_line_error(done, *words):
    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("lifcal: error: ")
    for word in words:
        assert word in lines[0]


def limit_file_size():
    """Stand in for a full disk: the write fails in the middle."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def hear_interrupts():
    """As in a terminal: jobs that a shell started in the background do not hear Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def interrupt(path, *arguments, by=signal.SIGINT):
    """Run a command, press Ctrl-C (or the like) when a file is there; return what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lifcal", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    deadline = time.monotonic() + 200
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(by)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return errors


def read_help(*arguments):
    """Return a command's help, which must come without loading anything heavy."""
    code = (
        f"import sys; sys.argv = {['lifcal', *arguments, '--help']}\n"
        "from lifcal.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"heavy = set({HEAVY}) & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
