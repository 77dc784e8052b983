"""Whole networks in namespaces of one machine, with walls between them, to see, try and test.

A topology is a value (topology.py), read from YAML (reading.py). The kernel's part of it is made by
fabric.py out of a plan (plan.py); processes run in it (processes.py), are asked things from inside
(probe.py), and steps say what has to be seen (steps.py). state.py knows which labs there are and
removal.py takes any of them away, whatever became of who made it. What a real cluster is made of
is in kubernetes/.
"""
