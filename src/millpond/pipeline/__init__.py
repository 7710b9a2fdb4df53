"""The description of a program: what the user built, before anything runs."""
