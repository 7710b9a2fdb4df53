"""The joins of two streams, one per file, and what they share."""
