"""The order of the rooms: raw frames to focused images, and on to a calibrated camera."""
