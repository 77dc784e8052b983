"""The HTTP ports of every program for operators: health, metrics, snapshots, profiles, changes.

Nothing here depends on a program: each provides callables. ports.py serves, guard.py decides whom
to answer.
"""
