"""Where tasks run: this process, worker processes, or Spark."""
