"""From a calibrated camera and a raw image to metric depth, clouds and meshes.

`DepthEngine` computes a `MetricFrame` from each raw, with the settings of `MetricOptions`;
`CloudFusion` and `MeshFusion` fuse frames with known poses; `read_cloud` and `write_cloud` handle
PLY files.
"""

from lifcal.metric.cloud import CloudFusion, PointCloud, make_cloud
from lifcal.metric.consistency import DepthMap, confirm_depth
from lifcal.metric.depth import (
    PLANES,
    MetricFlag,
    MetricOptions,
    compute_metric_depth,
    filter_depth,
)
from lifcal.metric.engine import DepthEngine, MetricFrame
from lifcal.metric.mesh import MeshFusion
from lifcal.metric.ply import read_cloud, read_mesh, write_cloud
from lifcal.metric.rectify import Rectification

__all__ = [
    "PLANES",
    "CloudFusion",
    "DepthEngine",
    "DepthMap",
    "MeshFusion",
    "MetricFlag",
    "MetricFrame",
    "MetricOptions",
    "PointCloud",
    "Rectification",
    "compute_metric_depth",
    "confirm_depth",
    "filter_depth",
    "make_cloud",
    "read_cloud",
    "read_mesh",
    "write_cloud",
]
