r"""A ROS 2 node that turns raws of a plenoptic camera into RGB-D topics.

Run it where ROS 2 and lifcal are installed, with the folder of a calibration:

    python examples/ros2_rgbd.py --ros-args -p camera:=OUT -p white:=white.png \
        -r image_raw:=/camera/image_raw

It subscribes to `image_raw` (sensor_msgs/Image: mono8, mono16, a Bayer pattern, rgb8 or bgr8) and
publishes, with the stamp of the raw:

    rgb/image_rect_color     rgb8 or mono8: the totally focused image without distortion
    depth/image_rect         32FC1, metres along the optical axis; NaN where unknown (REP 118)
    depth/sigma              32FC1, its standard deviation in metres
    rgb/camera_info, depth/camera_info

The parameter `raws` (a folder, a glob or a video) publishes these files at `rate` Hz in place of a
subscription. The functions that convert need no ROS; only `main` imports it.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import lifcal
from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError, LifcalError
from lifcal.imaging.frames import BAYER, Frame
from lifcal.metric import MetricFrame

_PIXELS = {
    "mono8": (np.uint8, 1),
    "mono16": (np.uint16, 1),
    "rgb8": (np.uint8, 3),
    "bgr8": (np.uint8, 3),
    "rgb16": (np.uint16, 3),
    "bgr16": (np.uint16, 3),
    **{f"bayer_{name}8": (np.uint8, 1) for name in BAYER},
    **{f"bayer_{name}16": (np.uint16, 1) for name in BAYER},
}
"""Type and number of channels of a pixel, by the encoding of a message."""


class ImageMessage(Protocol):
    """What is read of a sensor_msgs/Image."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any


@dataclass(frozen=True)
class ImageFields:
    """The fields of a sensor_msgs/Image besides its header."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class InfoFields:
    """The fields of a sensor_msgs/CameraInfo that describe an image without distortion."""

    height: int
    width: int
    distortion_model: str
    d: list[float]
    k: list[float]
    r: list[float]
    p: list[float]


@dataclass(frozen=True)
class RgbdFields:
    """What is published for a raw."""

    rgb: ImageFields
    depth: ImageFields
    sigma: ImageFields
    info: InfoFields


def read_pixels(message: ImageMessage) -> npt.NDArray[np.generic]:
    """Return the pixels of a message: (height, width), or red, green, blue (height, width, 3).

    A Bayer mosaic stays a mosaic, as `DepthEngine(bayer=...)` needs it.
    """
    if message.encoding not in _PIXELS:
        known = ", ".join(_PIXELS)
        raise DataError(f"images are {message.encoding!r}, needs one of {known}")
    kind, channels = _PIXELS[message.encoding]
    dtype = np.dtype(kind).newbyteorder(">" if message.is_bigendian else "<")
    used = message.width * channels * dtype.itemsize
    content = np.frombuffer(memoryview(message.data), np.uint8)
    if message.step < used or len(content) < message.step * message.height:
        raise DataError(
            f"an image of {message.width} x {message.height} px, {message.encoding}, has "
            f"{len(content)} bytes in rows of {message.step}"
        )
    rows = content[: message.step * message.height].reshape(message.height, message.step)
    pixels = np.ascontiguousarray(rows[:, :used]).view(dtype).astype(kind, copy=False)
    if channels == 1:
        return pixels
    pixels = pixels.reshape(message.height, message.width, channels)
    return np.ascontiguousarray(
        pixels[:, :, ::-1] if message.encoding.startswith("bgr") else pixels
    )


def find_bayer(encoding: str) -> str | None:
    """Return the color mosaic that an encoding names, 'rggb' for instance; None without one."""
    return encoding[6:10] if encoding.startswith("bayer_") else None


def make_image(pixels: npt.NDArray[np.generic], encoding: str) -> ImageFields:
    """Return an image as a message holds it."""
    height, width = pixels.shape[:2]
    native = np.ascontiguousarray(pixels)
    return ImageFields(
        height,
        width,
        encoding,
        int(sys.byteorder == "big"),
        native.strides[0],
        native.view(np.uint8).ravel(),
    )


def make_info(intrinsics: PinholeIntrinsics) -> InfoFields:
    """Return the camera of images without distortion."""
    k = intrinsics
    return InfoFields(
        k.height,
        k.width,
        "plumb_bob",
        [0.0] * 5,
        [k.fx, 0.0, k.cx, 0.0, k.fy, k.cy, 0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        [k.fx, 0.0, k.cx, 0.0, 0.0, k.fy, k.cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    )


def make_rgbd(frame: MetricFrame) -> RgbdFields:
    """Return all messages of a frame; depth and its sigma in metres."""
    image = np.clip(np.rint(255.0 * frame.image), 0, 255).astype(np.uint8)
    return RgbdFields(
        make_image(image, "rgb8" if image.ndim == 3 else "mono8"),
        make_image((frame.depth_mm / 1000.0).astype(np.float32), "32FC1"),
        make_image((frame.sigma_mm / 1000.0).astype(np.float32), "32FC1"),
        make_info(frame.intrinsics),
    )


class Converter:
    """Turns raws into RGB-D frames.

    Parameters
    ----------
    camera : str
        Folder of a calibration, or its camera.json.
    white : str
        White image of the camera; '' if there is none.
    range_mm : (float, float) or None
        Depths to search. With None they are found in each raw, which takes longer.
    """

    def __init__(
        self, camera: str, white: str = "", range_mm: tuple[float, float] | None = None
    ) -> None:
        self._camera = lifcal.read_camera(camera)
        if self._camera.scale_source is None:
            raise DataError(f"{camera}: the camera has no scale, so its depths are no metres")
        self._white = white or None
        self._options = lifcal.MetricOptions(range_mm=range_mm)
        self._engines: dict[str | None, lifcal.DepthEngine] = {}

    def convert_message(self, message: ImageMessage) -> RgbdFields:
        """Return what to publish for a message with a raw."""
        return self.convert(read_pixels(message), find_bayer(message.encoding))

    def convert(self, raw: Frame | npt.NDArray[np.generic], bayer: str | None) -> RgbdFields:
        """Return what to publish for a raw; the first of a color mosaic sets up its engine."""
        if bayer not in self._engines:
            engine = lifcal.DepthEngine(self._camera, self._white, self._options, bayer=bayer)
            engine.warm_up()
            self._engines[bayer] = engine
        return make_rgbd(self._engines[bayer].run(raw))


def main() -> None:
    """Run the node until it is interrupted."""
    import rclpy
    from rclpy.node import Node
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from sensor_msgs.msg import CameraInfo, Image

    rclpy.init()
    node = Node("lifcal_rgbd")
    names = {"camera": "", "white": "", "raws": "", "bayer": "", "frame_id": "camera_optical_frame"}
    text = {name: node.declare_parameter(name, value).value for name, value in names.items()}
    rate = node.declare_parameter("rate", 5.0).value
    near, far = (node.declare_parameter(f"{end}_mm", 0.0).value for end in ("near", "far"))
    converter = Converter(text["camera"], text["white"], (near, far) if far > 0.0 else None)
    topics = {
        "rgb": ("rgb/image_rect_color", "rgb/camera_info"),
        "depth": ("depth/image_rect", "depth/camera_info"),
        "sigma": ("depth/sigma", None),
    }
    images = {kind: node.create_publisher(Image, topic, 5) for kind, (topic, _) in topics.items()}
    infos = {
        kind: node.create_publisher(CameraInfo, topic, 5)
        for kind, (_, topic) in topics.items()
        if topic is not None
    }

    def publish(fields: RgbdFields, stamp: Any) -> None:
        for kind, publisher in images.items():
            message = Image()
            message.header.stamp, message.header.frame_id = stamp, text["frame_id"]
            for name, value in vars(getattr(fields, kind)).items():
                # an array of bytes is taken as it is; anything else is checked byte by byte
                setattr(message, name, array("B", value.tobytes()) if name == "data" else value)
            publisher.publish(message)
        for publisher in infos.values():
            message = CameraInfo()
            message.header.stamp, message.header.frame_id = stamp, text["frame_id"]
            for name, value in vars(fields.info).items():
                setattr(message, name, value)
            publisher.publish(message)

    def hear(message: Any) -> None:
        try:
            publish(converter.convert_message(message), message.header.stamp)
        except LifcalError as error:
            node.get_logger().warning(str(error))

    if text["raws"]:
        frames = lifcal.open_frames(text["raws"], bayer=text["bayer"] or None)
        places = iter(range(len(frames)))

        def play() -> None:
            index = next(places, None)
            if index is None:
                node.get_logger().info(f"all {len(frames)} raws are published")
                timer.cancel()
                return
            try:
                made = converter.convert(frames.read(index), frames.bayer)
                publish(made, node.get_clock().now().to_msg())
            except LifcalError as error:
                node.get_logger().warning(str(error))

        timer = node.create_timer(1.0 / rate, play)
    else:
        # the newest raw only: depth takes longer than a camera needs for a frame
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        node.create_subscription(Image, "image_raw", hear, newest)
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
