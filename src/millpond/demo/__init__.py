"""The demo: an app sums card payments while its driver and workers are killed, and nothing is lost.

payments    the input and the expected result: a seeded generator and a loop in plain Python
program     the app, in a process of its own
feed        writes the payments, a file at a time
crashes     which process is killed, and after how many rows
processes   finds Python workers of Spark and kills them
progress    the progress of the app, read from its ledger
screen      the display
verdict     compares state and sink with the expected result
play        runs the demo
"""
