"""The dashboard under ``/ui`` of every admin port: its feed, its routes, its files.

``dashboard_routes`` (routes.py) makes it from a Watched; ``isthmus dashboard`` merges several
programs into one page (merging.py).
"""
