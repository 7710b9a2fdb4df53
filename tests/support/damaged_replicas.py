"""Damage to local replicas, as a disk or another process may do it."""

from __future__ import annotations

import os
from pathlib import Path

from outside import Outside


def flip(folder: Path, marker: bytes) -> None:
    """Change a bit wherever the marker is in the stores below a folder; their signatures do not show it."""
    for file in folder.rglob("data.mdb"):
        data = bytearray(file.read_bytes())
        at = data.find(marker)
        assert at >= 0
        while at >= 0:
            data[at] ^= 1
            at = data.find(marker)
        with file.open("r+b") as store:
            store.write(data)
        facts = os.stat(file)
        (file.parent / "signature").write_bytes(b"%d %d %d\n" % (facts.st_ino, facts.st_size, facts.st_ctime_ns))


class Damage(Outside):
    """Damages the stores below a folder when it is called, so many times."""

    def __init__(self, marker: bytes) -> None:
        self.marker, self.folder, self.left = marker, Path(), 0

    def begin(self, folder: Path, times: int) -> None:
        self.folder, self.left = folder, times

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            flip(self.folder, self.marker)
