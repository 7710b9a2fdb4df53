"""Replicas: materialised copies of the log that know up to which record they have applied it."""

from millpond.replica.lmdb_store import Replica as Replica
from millpond.replica.view import Entry as Entry
from millpond.replica.view import View as View
