"""Leaves that every other module may use."""
