"""Prefix indexes: which replica holds which block."""
