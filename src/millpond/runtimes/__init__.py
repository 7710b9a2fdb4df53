"""Who runs the tasks: a loop in this process, or Spark."""
