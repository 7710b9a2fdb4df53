"""The log: segments hold changes and outputs, and the records of the ledger say which of them count."""
