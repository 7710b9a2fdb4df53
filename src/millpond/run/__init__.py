"""Running a program: one batch after the other, each with one commit."""
