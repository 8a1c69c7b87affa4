"""Reward terms; which of them are on is set in ``apex.rewards``."""
