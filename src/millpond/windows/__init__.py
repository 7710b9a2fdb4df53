"""Windows and triggers as pure functions: which windows hold a time, which sessions join, what fires."""
