"""Rows in their shapes: JSON text, Arrow tables, Python objects, and blobs for the wire."""
