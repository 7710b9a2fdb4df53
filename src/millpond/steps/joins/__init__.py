"""Joins of two streams: `asof`, `interval` and `window`, one per file.

`join_step` is what they share as steps of a program, `running_join` what they share while a batch runs. `buffer` holds
rows and their cells, `pairs` and `merge` make output rows, `time_bounds` is the arithmetic of partners.
"""
