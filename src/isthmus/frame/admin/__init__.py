"""The HTTP ports of every program for operators: health, metrics, snapshots, profiles, changes.

Nothing here knows a program: each gives callables in. What the ports answer to whom is ports.py.
"""
