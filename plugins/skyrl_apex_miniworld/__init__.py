"""A public sample world: a small simulated company, its tasks, its gateway and a tiny model."""

__version__ = "1"
"""Version of the world's content; part of the image's name."""
