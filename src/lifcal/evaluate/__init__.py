"""Comparison of a calibration with the ground truth of a simulation: parameters, poses, depth.

`evaluate_calibration` compares two folders and returns an `Evaluation`.
"""

from lifcal.evaluate.depth import DepthComparison
from lifcal.evaluate.evaluation import Evaluation, evaluate_calibration
from lifcal.evaluate.parameters import ParameterComparison
from lifcal.evaluate.trajectory import TrajectoryComparison

__all__ = [
    "DepthComparison",
    "Evaluation",
    "ParameterComparison",
    "TrajectoryComparison",
    "evaluate_calibration",
]
