"""The sample world needs no hooks of its own; its command builds worlds and tasks."""
