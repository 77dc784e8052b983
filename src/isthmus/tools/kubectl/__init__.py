"""The kubectl plugin's way to programs: pods found by label, admin ports reached by port-forward.

What is shown of programs is in ``tools/watching`` and ``tools/doctor``; the command line is
``cli/plugin.py``.
"""
