"""Publishing a hosted control plane, pure: a HostedCluster document → a checked plan → manifests.

Values are in model.py. document.py reads, rules.py checks, visibility.py says who sees what,
objects.py makes what the management cluster gets, changes.py compares two plans.
"""
