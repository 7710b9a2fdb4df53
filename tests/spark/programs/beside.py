"""A module of the user's, beside the script."""


def plus(a: int, b: int) -> int:
    return a + b
