"""The pictures of the docs are what the library makes of their rows today."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET

import pytest
from doc_pages import DOCS, ROOT, pages

DRAWN: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))["pictures"]()


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_picture_is_as_it_would_be_drawn_today(name: str) -> None:
    held = (DOCS / "pictures" / name).read_text()
    assert held == DRAWN[name], f"docs/pictures/{name} is not what the library does: run python scripts/pictures.py"


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_picture_is_well_formed_and_has_a_title(name: str) -> None:
    picture = ET.fromstring(DRAWN[name])
    title = picture.find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text


def test_every_picture_is_drawn_and_shown_on_some_page() -> None:
    assert {path.name for path in (DOCS / "pictures").iterdir()} == set(DRAWN)
    shown = {
        name for page in pages() for name in re.findall(r"!\[[^\]]+\]\([./]*pictures/([\w.]+)\)", page.read_text())
    }
    assert shown == set(DRAWN)
