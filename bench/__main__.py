"""`make bench`: the core's speed, as ratios in one run."""

from core import main

main()
