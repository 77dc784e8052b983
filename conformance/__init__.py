"""Kubernetes' own e2e tests against the lab's real cluster, and the same without Isthmus.

run.py brings clusters up and runs the tests in them, variants.py makes the clusters that are
compared out of one topology, selections.py says which tests, report.py reads and writes results.
"""
