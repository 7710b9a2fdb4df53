"""The log of a run for people: `millpond run` prints it."""

from __future__ import annotations

import logging

run_log = logging.getLogger("millpond.run")
