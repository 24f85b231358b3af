"""SDK: sandboxes for Python programs, without a run, a task or an environment's folder."""
