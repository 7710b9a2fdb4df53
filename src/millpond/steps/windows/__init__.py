"""Windows: their definitions, triggers, and how they run over rows or columns."""
