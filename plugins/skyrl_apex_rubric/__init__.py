"""An LLM judge over a task's criteria, on the host: grader ``rubric``."""
