"""The operators behind the verbs of streams, one per file."""
