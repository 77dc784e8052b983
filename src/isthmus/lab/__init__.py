"""Whole networks in namespaces of one machine, with walls between them, for trials and tests.

A topology is a value (topology.py), read from YAML (reading.py). fabric.py builds the kernel's part
from a plan (plan.py); processes run in it (processes.py), probes make attempts from inside
(probe.py), and steps check the results (steps.py). state.py lists the labs of this machine;
removal.py removes any of them, whatever happened to its maker. kubernetes/ builds real clusters.
"""
