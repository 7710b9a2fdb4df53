"""Tumbling and hopping windows over columns instead of rows."""
