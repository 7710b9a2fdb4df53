"""Values and keys as text that every tool can read, and back, equal and of the same type.

values    Codec, copy_value: any value as JSON with tags
keys      encode_key, partition_of: canonical bytes of a key, and who owns it
tags      the scalars that JSON lacks
kinds     the users' own types: dataclasses, Structs, namedtuples, enums
copies    independent copies
shapes    what classes look like in stored data
refusal, where    what cannot be stored, and where inside a value it stands
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
