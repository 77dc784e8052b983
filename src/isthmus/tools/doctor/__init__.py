"""Checks of a machine and the Isthmus programs on it: what was done, what was seen, what to do.

looks.py lists all checks and examine.py runs them; the values are in frame/finding.py. The modules
whose names begin with ``bundle`` make the archive of ``isthmus support-bundle``.
"""
