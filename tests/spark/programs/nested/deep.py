"""A module in a folder without `__init__.py`, beside the script."""


def label(who: str, spent: int) -> str:
    return f"<{who}: {spent}>"
