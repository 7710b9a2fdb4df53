"""`python -m millpond` is the same as `millpond`."""

from __future__ import annotations

from millpond.cli import main

if __name__ == "__main__":
    main()
