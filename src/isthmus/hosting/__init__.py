"""Publishing a hosted control plane, pure: a HostedCluster document → a checked plan → manifests.

model.py has the values. document.py reads, rules*.py check, visibility.py decides who sees what,
objects.py makes the objects for the management cluster, changes.py compares two plans.
"""
