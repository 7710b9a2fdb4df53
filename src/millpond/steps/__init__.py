"""Steps: named operators that keep state, one per file."""
