"""The log: segments hold changes and outputs, the ledger says which of them count."""
