"""Checks of a machine and the programs of isthmus on it: what was done, seen, and is to be done.

finding.py has the values, looks.py the list of all checks, examine.py runs them. The archive of
``isthmus support-bundle`` is made by the modules that begin with ``bundle``.
"""
