"""Patches for faulty world images, each applied only where its fault is present."""
