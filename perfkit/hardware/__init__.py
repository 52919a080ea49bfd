"""What a device can do at most: the peak registry, look-up by exact name, detection and calibration.

    registry      the data files as values, each with its source
    lookup        a name (or the facts of a board) -> a device; a device and a dtype -> a peak
    overrides     the user's peaks.toml and the measured peaks of this machine
    detection     what this machine has
    calibration   measure matmul, copy and all-reduce

A look-up never matches part of a name and never falls back: an unknown device has no peak, and the
message says how to give one.
"""
