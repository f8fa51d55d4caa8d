"""Confirmations: the best settings of a sweep train again with fresh seeds."""
