"""Drawing that training, reports and benchmarks share."""
