"""Compensated inheritance: the weights of `project` are solved for again, so that a smaller model computes what the
supernet computes on calibration text.
"""
