"""Committees: several trained models that answer as one."""
