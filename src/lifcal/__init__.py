"""Calibration of micro-lens-array light field cameras."""
