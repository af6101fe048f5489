"""Sinks as objects: detect them, follow them over steps, describe them. Pure functions on arrays, without torch."""
