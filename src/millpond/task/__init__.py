"""What runs in a worker: the tasks that read rows and the tasks that meet them with state."""
