"""Sources of live frames: half-written, deleted and renamed files, short reads, what is missing."""

import io
import threading
import time

import numpy as np
import pytest

from lifcal.errors import DataError, InputError
from lifcal.imaging.files import encode_png, write_png
from lifcal.pipeline import live_sources
from lifcal.pipeline.live_sources import open_source


def no_size():
    return None


def make_image(value, rng):
    return rng.integers(0, 255, (20, 30), dtype=np.uint8) // 2 + np.uint8(value)


def test_a_folder_is_watched_while_it_fills(tmp_path, rng, monkeypatch):
    """A file is taken when it is whole; what is deleted, renamed or hidden is not waited for."""
    monkeypatch.setattr(live_sources, "_POLL_S", 0.01)
    monkeypatch.setattr(live_sources, "_STILL_S", 0.15)
    monkeypatch.setattr(live_sources, "_GIVE_UP_S", 0.6)
    images = {f"{i}": make_image(i, rng) for i in (1, 2, 3, 10)}
    write_png(tmp_path / "1.png", images["1"])
    write_png(tmp_path / "seen.png", images["1"])
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".2.png.part").write_bytes(b"half")

    def fill():
        content = encode_png(images["2"])
        half = tmp_path / "2.png"
        half.write_bytes(content[: len(content) // 2])
        write_png(tmp_path / "10.png", images["10"])  # comes after 3 by its name
        (tmp_path / "4.png").write_bytes(b"")
        time.sleep(0.1)
        with half.open("ab") as stream:
            stream.write(content[len(content) // 2 :])
        time.sleep(0.05)
        (tmp_path / "4.png").rename(tmp_path / "3.png")
        (tmp_path / "3.png").write_bytes(encode_png(images["3"]))
        (tmp_path / "5.png").write_bytes(b"never an image")
        (tmp_path / "6.png").write_bytes(b"")  # and stays empty

    filling = threading.Thread(target=fill)
    filling.start()
    found = list(open_source(str(tmp_path), 1.2, ["seen"], no_size))
    filling.join()
    good = {frame.name: frame.pixels for frame in found if frame.pixels is not None}
    assert set(good) == set(images)
    for name, pixels in good.items():
        np.testing.assert_array_equal(pixels, images[name])
    bad = [frame for frame in found if frame.pixels is None]
    assert [frame.name for frame in bad] == ["5", "6"]
    assert "5.png" in bad[0].problem


def test_a_pipe_gives_frames_and_tells_of_a_short_read(rng):
    images = rng.integers(0, 60000, (3, 20, 30), dtype=np.uint16)
    content = images.astype("<u2").tobytes()
    found = list(open_source("-", None, [], lambda: (30, 20), 16, io.BytesIO(content)))
    np.testing.assert_array_equal([frame.pixels for frame in found], images)
    assert [frame.name for frame in found] == [f"stdin-{i:06d}" for i in range(3)]
    short = open_source("-", None, ["a", "b"], lambda: (30, 20), 8, io.BytesIO(content[:700]))
    assert next(short).name == "stdin-000002"
    with pytest.raises(DataError, match="in the middle of frame 3: 100 of 600 bytes"):
        next(short)
    with pytest.raises(InputError, match="give --grid, --white or --camera"):
        open_source("-", None, [], no_size)
    with pytest.raises(InputError, match="needs 8 or 16"):
        next(open_source("-", None, [], lambda: (30, 20), 12, io.BytesIO(content)))


def test_what_is_no_source_is_said_in_one_line(tmp_path):
    (tmp_path / "a.txt").write_text("no video")
    with pytest.raises(DataError, match="is no video"):
        open_source(str(tmp_path / "a.txt"), None, [], no_size)
    with pytest.raises(DataError, match="no such folder or video"):
        open_source(str(tmp_path / "nothing"), None, [], no_size)
    with pytest.raises(DataError, match="camera 97: OpenCV finds no such camera"):
        next(open_source("97", None, [], no_size))


def test_a_video_is_read_frame_by_frame(tmp_path, rng):
    import cv2

    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (64, 48))
    for _ in range(3):
        writer.write(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
    writer.release()
    found = list(open_source(str(path), None, ["film-000000"], no_size))
    assert [frame.name for frame in found] == ["film-000001", "film-000002"]
    assert found[0].pixels.shape == (48, 64, 3)
