"""Ready-made reward terms. Values are added to the score, so penalties are negative."""
