"""The verbs of streams at work, one per file."""
