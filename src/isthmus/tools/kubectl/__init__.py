"""How the kubectl plugin reaches programs: pods by label, admin ports by port-forward.

``tools/watching`` and ``tools/doctor`` show the programs; ``cli/plugin.py`` has the command line.
"""
