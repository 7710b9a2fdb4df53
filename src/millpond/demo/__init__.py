"""The demo: card payments are summed up while their driver and its workers are killed, and nothing is lost.

payments    what comes in, and what must come of it: a seeded generator and a fold in plain Python
program     the app, a process of its own
feed        writes the payments, a file at a time
crashes     who is killed, and after how many rows
processes   finds a worker of Spark, and kills
progress    how far the app has come, read from its ledger
screen      what is shown meanwhile
verdict     whether state and sink are what the fold says
play        all of it together
"""
