"""The handles and overlays through which a step reads and writes state within one batch."""
