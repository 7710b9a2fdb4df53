"""Sizes of the batches in which a producer sends messages.

A topic's `max.message.bytes` is a limit for a batch, which librdkafka neither knows nor asks for. A broker that refuses
a batch refuses all of its messages, also if each of them is small enough. Then they are sent again in smaller batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BATCH_BYTES = (1_000_000, 64 << 10, 4 << 10, 0)  # librdkafka's default, and what is tried after it; 0 is one message


def batch_config(level: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a producer that are to override `config`, so that its batches are of a level's size.

    >>> batch_config(0, {}), batch_config(1, {"batch.size": 1000}), batch_config(3, {})
    ({}, {'batch.size': 1000}, {'batch.num.messages': 1})
    """
    if level == 0:
        return {}
    if BATCH_BYTES[level] == 0:
        return {"batch.num.messages": 1}
    return {"batch.size": _batch_bytes(level, config)}


def is_sent_alone(level: int, config: Mapping[str, Any], message_bytes: int) -> bool:
    """Return whether a message of this size is in a batch of its own, which cannot be smaller.

    >>> is_sent_alone(0, {}, 3_000_000), is_sent_alone(0, {}, 54), is_sent_alone(3, {}, 54)
    (True, False, True)
    """
    return message_bytes >= _batch_bytes(level, config)


def _batch_bytes(level: int, config: Mapping[str, Any]) -> int:
    """Return the size that the batches of a level may have. A larger message is a batch of its own."""
    return min(BATCH_BYTES[level], int(config.get("batch.size", BATCH_BYTES[0])))
