"""Kindling: small models at full hardware speed, from one configuration."""
