"""The sample world's gateway: health, populate, snapshot, apps and MCP on one port.

A world is started once for each trial, so its start is kept cheap: everything here that a
trial needs runs on the standard library alone and is copied as it is into the world's image.
"""
