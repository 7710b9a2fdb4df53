"""Encodes values and keys as text that every tool can read; they are decoded equal and of the same type.

values        Codec: any value as JSON with tags
keys          encode_key, partition_of: canonical bytes of a key, and the partition that owns it
key_order     sort_key: the natural order of keys, and how the encoded keys of a part of it begin
tags          tags for the scalars that JSON lacks
tagging       a value as a tree of JSON and tags
plain_check   whether many values need no tags
user_types    the users' own types: dataclasses, Structs, namedtuples, enums
copies        independent copies of values
shapes        the fields of classes in stored data
refusal       errors for values that cannot be stored
locate        where inside a value such a part is
"""

from __future__ import annotations

from millpond.codec.copies import IMMUTABLE, copy_value
from millpond.codec.keys import decode_key, decode_keys, encode_key, encode_keys, partition_of, partitions_of
from millpond.codec.refusal import NotEncodable, Unreadable
from millpond.codec.values import Codec

__all__ = [
    "IMMUTABLE",
    "Codec",
    "NotEncodable",
    "Unreadable",
    "copy_value",
    "decode_key",
    "decode_keys",
    "encode_key",
    "encode_keys",
    "partition_of",
    "partitions_of",
]
