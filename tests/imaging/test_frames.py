"""Reading frames: every kind that users have, and one clear line for every kind that is broken."""

import pickle

import cv2
import numpy as np
import pytest

from lifcal.errors import ConfigError, DataError, InputError
from lifcal.grid.plenoptic import check_plenoptic
from lifcal.image_headers import read_header
from lifcal.imaging.files import decode_image, read_image, write_float_tiff, write_png
from lifcal.imaging.frames import ArrayFrames, looks_like_mosaic, make_frame, open_frames
from lifcal.simulate import Imperfections, Simulation, SimulationOptions, build_camera
from lifcal.sources import list_recordings


@pytest.fixture
def gray(rng):
    smooth = cv2.GaussianBlur(rng.uniform(0, 255, (48, 64)), (0, 0), 3)
    return cv2.normalize(smooth, None, 20, 230, cv2.NORM_MINMAX).astype(np.uint8)


def write(path, image):
    assert cv2.imwrite(str(path), image)
    return path


@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff", ".bmp", ".PNG"])
def test_8_bit_files_are_read_exactly(suffix, gray, tmp_path):
    frame = open_frames(write(tmp_path / f"a{suffix}", gray)).read(0)
    assert frame.name == "a"
    assert (frame.bits, frame.saturated, frame.color) == (8, 0.0, None)
    assert frame.gray.dtype == np.float32
    np.testing.assert_allclose(frame.gray, gray / 255.0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_files_are_read_exactly(suffix, gray, tmp_path):
    deep = gray.astype(np.uint16) * 257 - 3
    frame = open_frames(write(tmp_path / f"a{suffix}", deep)).read(0)
    assert frame.bits == 16
    np.testing.assert_allclose(frame.gray, deep / 65535.0, atol=1e-6)


def test_jpeg_and_color(gray, tmp_path):
    color = np.stack([gray, 255 - gray, gray // 2], axis=2)  # blue, green, red for OpenCV
    frame = open_frames(write(tmp_path / "a.png", color)).read(0)
    np.testing.assert_allclose(frame.color, color[:, :, ::-1] / 255.0, atol=1e-6)
    expected = color @ np.array([0.114, 0.587, 0.299]) / 255.0
    np.testing.assert_allclose(frame.gray, expected, atol=1e-5)
    jpeg = open_frames(write(tmp_path / "b.jpg", gray)).read(0)
    assert np.abs(jpeg.gray - gray / 255.0).mean() < 0.02  # lossy


def test_gray_saved_as_color_is_mono(gray, tmp_path):
    path = write(tmp_path / "a.png", np.repeat(gray[:, :, None], 3, axis=2))
    assert open_frames(path).read(0).color is None


@pytest.mark.parametrize("pattern", ["rggb", "grbg", "gbrg", "bggr"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_bayer_colors_come_out_right(pattern, dtype, tmp_path):
    values = {"r": 40, "g": 120, "b": 200}
    cell = np.array([values[letter] for letter in pattern], dtype).reshape(2, 2)
    cell *= 257 if dtype == np.uint16 else 1
    path = write(tmp_path / "a.png", np.tile(cell, (16, 20)))
    frame = open_frames(path, bayer=pattern).read(0)
    expected = np.array([40, 120, 200]) / 255.0
    assert np.abs(frame.color - expected).max() < 0.003
    assert np.abs(frame.gray - expected @ [0.299, 0.587, 0.114]).max() < 0.003
    wrong = open_frames(path, bayer={"rggb": "bggr"}.get(pattern, "rggb")).read(0)
    assert np.abs(wrong.color - expected).max() > 0.1


def test_bayer_of_gray_is_not_shifted(gray, tmp_path):
    """Bilinear interpolation mixes neighbors evenly: no color pulls the image to one side."""
    smooth = cv2.GaussianBlur(gray, (0, 0), 4)
    frame = open_frames(write(tmp_path / "a.png", smooth), bayer="rggb").read(0)
    inner = np.s_[4:-4, 4:-4]
    assert np.abs(frame.gray - smooth / 255.0)[inner].max() < 0.01


def test_bayer_is_refused_where_it_makes_no_sense(gray, tmp_path):
    path = write(tmp_path / "a.png", np.stack([gray, 255 - gray, gray], axis=2))
    with pytest.raises(DataError, match=r"a\.png: is in color already"):
        open_frames(path, bayer="rggb").read(0)
    with pytest.raises(ConfigError, match="Bayer pattern 'rgb'"):
        open_frames(path, bayer="rgb")


def test_folders_are_sorted_as_people_do(gray, tmp_path):
    for name in ("f10.png", "f2.png", "f1.png", "F3.PNG", ".hidden.png", "notes.txt"):
        if name.endswith("txt"):
            (tmp_path / name).write_text("no image")
        else:
            write(tmp_path / name, gray)
    assert open_frames(tmp_path).names == ("f1", "f2", "F3", "f10")
    assert open_frames(str(tmp_path / "f*.png")).names == ("f1", "f2", "f10")
    listed = open_frames([tmp_path / "f10.png", str(tmp_path / "f1.png")])
    assert listed.names == ("f10", "f1")
    assert len(listed) == 2


def test_names_stay_apart(gray, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "0.png", gray)
    frames = open_frames([tmp_path / "a", tmp_path / "b"])
    assert len(set(frames.names)) == 2
    with pytest.raises(DataError, match=r"0\.png: was given twice"):
        open_frames([tmp_path / "a", tmp_path / "a"])
    for folder in ("one/raw", "two/raw"):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / "0.png", gray)
    names = open_frames([tmp_path / "one/raw", tmp_path / "two/raw/0.png"]).names
    assert names == ("one_raw_0_png", "two_raw_0_png")


def test_what_is_read_is_not_written(gray, tmp_path):
    write(tmp_path / "0.png", gray)
    frames = open_frames(tmp_path)
    frames.check_not_among(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"0\.png: is one of the images"):
        frames.check_not_among(tmp_path / "new" / ".." / "0.png")


def test_videos_are_frames(gray, tmp_path):
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no videos")
    for k in range(4):
        writer.write(np.repeat(np.roll(gray, 8 * k, axis=1)[:, :, None], 3, axis=2))
    writer.release()
    frames = open_frames(path)
    assert frames.names == ("clip_000000", "clip_000001", "clip_000002", "clip_000003")
    for k in (2, 0, 1, 3):  # in any order
        got = frames.read(k).gray
        assert np.abs(got - np.roll(gray, 8 * k, axis=1) / 255.0).mean() < 0.03
    path.write_bytes(b"RIFF nothing")
    with pytest.raises(DataError, match=r"clip\.avi: not a video"):
        open_frames(path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.png: no such file"):
        open_frames(tmp_path / "nothing.png")
    with pytest.raises(DataError, match=r"\*\.bmp: no file matches"):
        open_frames(tmp_path / "*.bmp")
    with pytest.raises(DataError, match="no images in this folder"):
        open_frames(tmp_path)
    with pytest.raises(InputError, match="no frames"):
        open_frames([])


def test_what_is_no_image_is_named(gray, tmp_path):
    write(tmp_path / "0.png", gray)
    (tmp_path / "1.png").write_text("no image")
    (tmp_path / "2.png").write_bytes(b"")
    frames = open_frames(tmp_path)
    frames.read(0)
    for index in (1, 2):
        with pytest.raises(DataError, match=rf"{index}\.png: not an image"):
            frames.read(index)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp"])
@pytest.mark.parametrize("share", [0.999, 0.7, 0.3, 0.01])
def test_truncated_files_are_noticed(suffix, share, rng, tmp_path):
    path = write(tmp_path / f"a{suffix}", rng.integers(0, 255, (90, 120), dtype=np.uint8))
    content = path.read_bytes()
    assert read_header(content).complete
    path.write_bytes(content[: max(20, int(share * len(content)))])
    with pytest.raises(DataError, match=rf"a\{suffix}: cut off"):
        open_frames([path, write(tmp_path / "b.png", np.zeros((90, 120), np.uint8) + 9)]).read(0)


def test_a_damaged_png_is_noticed(gray, tmp_path):
    path = write(tmp_path / "a.png", gray)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"a\.png: cut off or damaged PNG: .*IDAT"):
        open_frames(path).read(0)


def test_headers_tell_what_opencv_finds(gray, tmp_path):
    for name, image in (
        ("a.png", gray),
        ("b.png", gray.astype(np.uint16) * 256),
        ("c.jpg", gray),
        ("d.bmp", gray),
        ("e.tif", gray.astype(np.uint16) * 256),
        ("f.tif", np.stack([gray] * 3, axis=2)),
    ):
        header = read_header(write(tmp_path / name, image).read_bytes())
        assert (header.width, header.height) == (64, 48), name
        assert header.bits == image.dtype.itemsize * 8, name
    assert read_header(b"GIF89a") is None


def test_the_odd_frame_out_is_named_even_if_it_is_the_first(gray, tmp_path):
    write(tmp_path / "0.png", gray[:40])
    write(tmp_path / "1.png", gray)
    write(tmp_path / "2.png", gray)
    write(tmp_path / "3.png", gray.astype(np.uint16) * 257)
    frames = open_frames(tmp_path)
    assert frames.image_size == (64, 48)
    with pytest.raises(DataError, match=r"0\.png: 64 x 40 px, but the other frames have 64 x 48"):
        frames.read(0)
    with pytest.raises(DataError, match=r"3\.png: 16 bit, but the other frames have 8 bit"):
        frames.read(3)
    frames.read(1)


def test_black_and_saturated_frames_are_named(gray, tmp_path):
    cases = {
        "black8": np.full_like(gray, 1),
        "black16": np.full(gray.shape, 40, np.uint16),
        "white8": np.full_like(gray, 255),
        "white12": np.full(gray.shape, 4095, np.uint16),
        "white12high": np.full(gray.shape, 0xFFF0, np.uint16),
    }
    for name, image in cases.items():
        with pytest.raises(DataError, match="black" if "black" in name else "saturated: 100 %"):
            make_frame(image, name, name)
    half = gray.copy()
    half[:20] = 255
    assert make_frame(half, "half", "half").saturated == pytest.approx(20 / 48, abs=0.01)
    dim = (gray.astype(np.uint16) * 4095) // 255  # 12 bits at the lower end of 16
    assert make_frame(dim, "dim", "dim").saturated == 0.0


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_sixteen_bits_may_hold_fewer(gray, tmp_path, bits):
    """Full scale is that of the recording's brightest frame, not of the file or of one frame."""
    full = (1 << bits) - 1
    bright = (gray.astype(np.float64) * full / 255).astype(np.uint16)
    for index, factor in enumerate((0.2, 1.0, 0.2)):
        write(tmp_path / f"{index}.png", (factor * bright).astype(np.uint16))
    frames = open_frames(tmp_path)
    assert frames.full_scale == full
    assert frames.select([0, 2]).full_scale == full
    for index, factor in enumerate((0.2, 1.0, 0.2)):
        np.testing.assert_allclose(frames.read(index).gray, factor * gray / 255.0, atol=2.5 / full)
    # A frame that cannot be used does not say what white is.
    write(tmp_path / "3.png", np.full(gray.shape, 65535, np.uint16))
    write(tmp_path / "4.png", np.full(gray.shape, 255, np.uint8))
    assert open_frames(tmp_path).full_scale == full
    assert make_frame(bright, "alone", "alone").gray.max() == pytest.approx(1.0, abs=0.2)


def test_a_mosaic_is_seen():
    """Raws of one scene with and without a mosaic; with its pattern given there is none to see."""
    for bayer in (None, "grbg"):
        simulation = Simulation(
            SimulationOptions(camera="mini", frames=2, rays_per_pixel=2, bayer=bayer)
        )
        raw = simulation.render_frame(0).raw
        assert looks_like_mosaic(make_frame(raw, "raw", "raw.png")) is (bayer is not None)
        assert not looks_like_mosaic(make_frame(raw, "raw", "raw.png", "grbg"))


def test_an_ordinary_photograph_is_refused(tmp_path):
    simulation = Simulation(
        SimulationOptions(
            camera="mini",
            scene="room",
            frames=2,
            pinhole_scale=1.0,
            rays_per_pixel=4,
            imperfections=Imperfections(lattice="recorded"),
        )
    )
    rendered = simulation.render_frame(0)
    grid = simulation.optics.camera.grid
    raw = make_frame(rendered.raw, "raw", "raw.png")
    check_plenoptic(raw)
    check_plenoptic(raw, grid)
    pixels = np.clip(255 * rendered.view.color, 0, 255).astype(np.uint8)
    photo = make_frame(pixels, "photo", "photo.png")
    with pytest.raises(DataError, match=r"^photo\.png: no micro-lens pattern"):
        check_plenoptic(photo)
    with pytest.raises(DataError, match=r"^photo\.png: no micro-lens pattern of the grid's pitch"):
        check_plenoptic(photo, grid)
    other = build_camera("mini-square").camera.grid
    with pytest.raises(DataError, match=r"14\.30 px"):
        check_plenoptic(raw, other)
    small = make_frame(rendered.raw[:100], "small", "small.png")
    with pytest.raises(DataError, match="640 x 100 px, but the grid is for 640 x 480"):
        check_plenoptic(small, grid)


def test_noise_and_flat_images_are_no_plenoptic_images(rng):
    for image in (
        rng.integers(0, 255, (300, 400), dtype=np.uint8),
        np.full((300, 400), 90, np.uint8),
        (127 + 100 * np.sin(np.arange(400) / 3.0) * np.ones((300, 1))).astype(np.uint8),
    ):
        with pytest.raises(DataError, match="no micro-lens pattern"):
            check_plenoptic(make_frame(image, "x", "x.png"))


def test_real_raws_are_plenoptic(shared_data):
    from lifcal.imaging.raytrix import read_raytrix_xml

    frame = open_frames(shared_data / "R42" / "sc2_klein.png").read(0)
    grid = read_raytrix_xml(shared_data / "R42" / "sc2_klein.xml").grid(frame.image_size)
    check_plenoptic(frame, grid)
    check_plenoptic(open_frames(shared_data / "white-microscope" / "white.tif").read(0))


def test_some_of_the_frames(gray, tmp_path):
    for index in range(4):
        write(tmp_path / f"{index}.png", np.where(gray > 100, gray, index).astype(np.uint8))
    frames = open_frames(tmp_path)
    assert frames.image_size == (64, 48)
    chosen = frames.select([3, 1])
    assert chosen.names == ("3", "1")
    assert len(chosen) == 2
    assert len(frames) == 4
    np.testing.assert_array_equal(chosen.read(0).gray, frames.read(3).gray)
    assert chosen.source(1).endswith("1.png")


def test_another_process_opens_the_same_frames(gray, tmp_path, monkeypatch):
    """A pickle holds paths and no pixels; it can be read in another folder."""
    deep = gray.astype(np.uint16) * 16  # 12 bits: full scale is that of all frames
    write(tmp_path / "a.png", deep)
    write(tmp_path / "b.png", deep // 8)
    monkeypatch.chdir(tmp_path)
    frames = open_frames("*.png")
    content = pickle.dumps(frames.select([1, 0]))
    assert len(content) < 2000
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    there = pickle.loads(content)
    assert (there.names, there.full_scale) == (("b", "a"), 4095)
    np.testing.assert_array_equal(there.read(0).gray, (deep // 8) * np.float32(1 / 4095))
    assert there.read(0).source == "b.png"  # as it was given
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match=r"^a\.png: no such file"):
        there.read(1)


def test_another_process_opens_the_same_video(rng, tmp_path, monkeypatch):
    writer = cv2.VideoWriter(
        str(tmp_path / "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48)
    )
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no videos")
    for level in range(60, 72):
        image = rng.integers(0, 60, (48, 64, 3), dtype=np.uint8)
        writer.write(image + np.uint8(10 * (level - 60)))
    writer.release()
    monkeypatch.chdir(tmp_path)
    frames = open_frames("clip.avi")
    expected = [frames.read(index).color for index in range(12)]
    (tmp_path / "other").mkdir()
    content = pickle.dumps(frames)
    monkeypatch.chdir(tmp_path / "other")
    there = pickle.loads(content)
    for index in (1, 3, 4, 9, 2, 0, 11):  # forwards by reading on, backwards by seeking
        np.testing.assert_array_equal(there.read(index).color, expected[index])


def test_arrays_are_frames(gray):
    frames = ArrayFrames([gray, gray[:20], np.zeros_like(gray), gray[0]], list("abcd"))
    assert frames.in_memory
    assert (len(frames), frames.image_size, frames.names) == (4, (64, 48), tuple("abcd"))
    np.testing.assert_allclose(frames.read(0).gray, gray / 255.0, atol=1e-6)
    for index, problem in ((1, "b: 64 x 20 px"), (2, "c: black"), (3, "d: 1 dimensions")):
        with pytest.raises(DataError, match=problem):
            frames.read(index)
    assert frames.select([2, 0]).read(1).name == "a"
    with pytest.raises(InputError, match="another process"):
        pickle.dumps(frames)
    with pytest.raises(InputError, match="no frames"):
        ArrayFrames([])
    with pytest.raises(InputError, match="1 different names for 2 frames"):
        ArrayFrames([gray, gray], ["a", "a"])


def test_maps_are_compressed_without_loss(rng, tmp_path):
    smooth = np.linspace(2.0, 5.0, 200 * 300, dtype=np.float32).reshape(200, 300)
    noisy = smooth + rng.normal(0.0, 0.01, smooth.shape).astype(np.float32)
    noisy[:20] = np.nan
    write_float_tiff(tmp_path / "map.tiff", noisy)
    np.testing.assert_array_equal(read_image(tmp_path / "map.tiff"), noisy)
    content = (tmp_path / "map.tiff").read_bytes()
    assert len(content) < 0.8 * noisy.nbytes
    with pytest.raises(DataError, match="cut off"):
        decode_image(tmp_path / "map.tiff", content[: len(content) // 2])


def test_what_a_recording_is(tmp_path):
    """A folder, a glob or a list is one; single images belong to that of their folder."""
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        write_png(tmp_path / name, np.full((4, 4), 9, np.uint8))
    a, b = tmp_path / "a", tmp_path / "b"

    def counts(*sources):
        return [len(recording.files) for recording in list_recordings(sources)]

    assert counts(a) == [2]
    assert counts(a, b) == [2, 1]
    assert counts(f"{tmp_path}/*/*.png") == [3]
    assert counts(a / "1.png", b / "1.png", a / "2.png") == [2, 1]
    assert counts([a, b]) == [3]
    with pytest.raises(InputError, match="no frames were given"):
        list_recordings([])
