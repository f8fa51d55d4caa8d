"""Figures that training, reports and benchmarks share."""
