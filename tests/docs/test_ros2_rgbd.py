"""The ROS 2 node of `examples/`: its messages as ROS defines them, and its course without ROS."""

import importlib.util
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from lifcal.camera import write_camera
from lifcal.errors import DataError
from lifcal.imaging.files import write_png
from lifcal.metric import DepthEngine, MetricOptions
from tests.metric.cases import Recording

PATH = Path(__file__).parents[2] / "examples" / "ros2_rgbd.py"
RANGE_MM = (400.0, 2000.0)


@pytest.fixture(scope="module")
def ros():
    """The messages of ROS 2, with its own serialization."""
    return get_typestore(Stores.ROS2_HUMBLE)


@pytest.fixture(scope="module")
def node():
    """The module, which must load where there is no ROS."""
    assert "rclpy" not in sys.modules
    spec = importlib.util.spec_from_file_location("ros2_rgbd", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ros2_rgbd"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mini():
    return Recording(frames=1)


@pytest.fixture(scope="module")
def files(mini, tmp_path_factory):
    folder = tmp_path_factory.mktemp("camera")
    write_camera(folder / "camera.json", replace(mini.camera, scale_source="markers"))
    write_png(folder / "white.png", mini.white)
    write_png(folder / "raw" / "0.png", mini.frames[0].raw)
    return folder


def make_header(ros):
    kinds = ros.types
    stamp = kinds["builtin_interfaces/msg/Time"](sec=3, nanosec=7)
    return kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="cam")


def make_message(ros, pixels, encoding, *, step=None, big=False):
    pixels = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<"))
    height, width = pixels.shape[:2]
    used = pixels[0].nbytes
    rows = np.zeros((height, step or used), np.uint8)
    rows[:, :used] = np.ascontiguousarray(pixels).view(np.uint8).reshape(height, used)
    return ros.types["sensor_msgs/msg/Image"](
        header=make_header(ros),
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=int(big),
        step=rows.shape[1],
        data=rows.ravel(),
    )


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("step", [None, 64])
@pytest.mark.parametrize(
    ("encoding", "dtype", "channels"),
    [
        ("mono8", np.uint8, 1),
        ("mono16", np.uint16, 1),
        ("bayer_rggb8", np.uint8, 1),
        ("bayer_gbrg16", np.uint16, 1),
        ("rgb8", np.uint8, 3),
        ("bgr16", np.uint16, 3),
    ],
)
def test_pixels_of_a_message(ros, node, rng, encoding, dtype, channels, step, big):
    shape = (4, 5) if channels == 1 else (4, 5, 3)
    pixels = rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype)
    message = make_message(ros, pixels, encoding, step=step, big=big)
    found = node.read_pixels(message)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[..., ::-1] if encoding[:3] == "bgr" else found, pixels)
    assert node.find_bayer(encoding) == (encoding[6:10] if "bayer" in encoding else None)


def test_messages_that_cannot_be_read(ros, node):
    good = make_message(ros, np.ones((4, 5), np.uint8), "mono8")
    with pytest.raises(DataError, match=r"images are '32FC1', needs one of mono8"):
        node.read_pixels(replace(good, encoding="32FC1"))
    with pytest.raises(DataError, match="20 bytes in rows of 5"):
        node.read_pixels(replace(good, height=5))
    with pytest.raises(DataError, match="rows of 5"):
        node.read_pixels(replace(good, width=6))


@pytest.fixture(scope="module")
def made(ros, node, mini, files):
    converter = node.Converter(str(files), str(files / "white.png"), RANGE_MM)
    return converter.convert_message(make_message(ros, mini.frames[0].raw, "mono8"))


def test_what_is_published_is_what_the_engine_found(ros, made, mini, files):
    """Through ROS' own serialization: field types, lengths and bytes."""
    camera = replace(mini.camera, scale_source="markers")
    engine = DepthEngine(camera, files / "white.png", MetricOptions(range_mm=RANGE_MM))
    expected = engine.run(mini.frames[0].raw)
    read = {}
    for name in ("rgb", "depth", "sigma"):
        kind = "sensor_msgs/msg/Image"
        message = ros.types[kind](header=make_header(ros), **vars(getattr(made, name)))
        back = ros.deserialize_cdr(ros.serialize_cdr(message, kind), kind)
        dtype = np.dtype({"mono8": np.uint8, "32FC1": np.float32}[back.encoding])
        assert back.step == back.width * dtype.itemsize
        read[name] = back.data.view(dtype).reshape(back.height, back.width)
    np.testing.assert_allclose(read["depth"] * 1000.0, expected.depth_mm, rtol=1e-6)
    np.testing.assert_allclose(read["sigma"] * 1000.0, expected.sigma_mm, rtol=1e-6)
    assert np.isnan(read["depth"]).any()
    assert np.abs(read["rgb"] / 255.0 - np.clip(expected.image, 0, 1)).max() < 0.003

    kind = "sensor_msgs/msg/CameraInfo"
    region = ros.types["sensor_msgs/msg/RegionOfInterest"](0, 0, 0, 0, do_rectify=False)
    fields = {name: getattr(made.info, name) for name in vars(made.info)}
    arrays = {name: np.array(fields.pop(name)) for name in "dkrp"}
    message = ros.types[kind](
        header=make_header(ros), binning_x=0, binning_y=0, roi=region, **fields, **arrays
    )
    info = ros.deserialize_cdr(ros.serialize_cdr(message, kind), kind)
    k = expected.intrinsics
    assert (info.width, info.height) == (k.width, k.height)
    # REP 104: [u v w] = P [x y z 1]
    u, v, w = info.p.reshape(3, 4) @ [30.0, -20.0, 800.0, 1.0]
    assert u / w == pytest.approx(k.cx + k.fx * 30.0 / 800.0)
    assert v / w == pytest.approx(k.cy - k.fy * 20.0 / 800.0)
    np.testing.assert_array_equal(info.p.reshape(3, 4)[:, :3], info.k.reshape(3, 3))


def test_a_camera_without_scale_is_refused(node, mini, tmp_path):
    write_camera(tmp_path / "camera.json", replace(mini.camera, scale_source=None))
    with pytest.raises(DataError, match="has no scale"):
        node.Converter(str(tmp_path))


class StandIn:
    """As much of rclpy as the node uses: it gives parameters, and notes what is published."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.published = []
        self.said = []
        self.heard = None
        self.timer = None
        self.over = False

    def modules(self):
        class Message(types.SimpleNamespace):
            def __init__(self):
                super().__init__(header=types.SimpleNamespace(stamp=None, frame_id=""))

        def module(name, **content):
            found = types.ModuleType(name)
            vars(found).update(content)
            return found

        messages = {"Image": type("Image", (Message,), {}), "CameraInfo": type("I", (Message,), {})}
        self.image = messages["Image"]
        ways = {"QoSProfile": dict, "ReliabilityPolicy": types.SimpleNamespace(BEST_EFFORT=1)}
        return {
            "rclpy": module("rclpy", init=lambda: None, spin=self.spin, try_shutdown=self.end),
            "rclpy.node": module("rclpy.node", Node=lambda name: self),
            "rclpy.qos": module("rclpy.qos", **ways),
            "sensor_msgs": module("sensor_msgs"),
            "sensor_msgs.msg": module("sensor_msgs.msg", **messages),
        }

    def declare_parameter(self, name, value):
        return types.SimpleNamespace(value=self.parameters.get(name, value))

    def create_publisher(self, kind, topic, depth):
        return types.SimpleNamespace(
            publish=lambda message: self.published.append((topic, message))
        )

    def create_timer(self, seconds, call):
        self.timer = types.SimpleNamespace(call=call, cancel=self.end)
        return self.timer

    def create_subscription(self, kind, topic, call, profile):
        self.heard = call

    def get_clock(self):
        return types.SimpleNamespace(now=lambda: types.SimpleNamespace(to_msg=lambda: "now"))

    def get_logger(self):
        return types.SimpleNamespace(info=self.said.append, warning=self.said.append)

    def destroy_node(self):
        self.over = True

    def end(self):
        self.over = True

    def spin(self, node):
        if self.heard is not None:
            for message in self.messages:
                self.heard(message)
        while self.timer is not None and not self.over:
            self.timer.call()


TOPICS = ["rgb/image_rect_color", "depth/image_rect", "depth/sigma"]
TOPICS += ["rgb/camera_info", "depth/camera_info"]


@pytest.mark.parametrize("play", [False, True])
def test_the_course_of_the_node(ros, node, made, mini, files, monkeypatch, play):
    """A raw is published on all topics with its stamp; one that is not usable is said."""
    near, far = RANGE_MM
    parameters = {"camera": str(files), "white": str(files / "white.png"), "frame_id": "optics"}
    parameters |= {"near_mm": near, "far_mm": far}
    if play:
        parameters["raws"] = str(files / "raw")
    stand_in = StandIn(parameters)
    raw = make_message(ros, mini.frames[0].raw, "mono8")
    stand_in.messages = [raw, replace(raw, encoding="yuv422")]
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    node.main()
    assert [topic for topic, _ in stand_in.published] == TOPICS
    for _, message in stand_in.published:
        assert message.header.frame_id == "optics"
        assert message.header.stamp == ("now" if play else raw.header.stamp)
    depth = stand_in.published[1][1]
    assert bytes(depth.data) == made.depth.data.tobytes()
    assert stand_in.said[-1].startswith("all 1 raws" if play else "images are 'yuv422'")
    assert stand_in.over
