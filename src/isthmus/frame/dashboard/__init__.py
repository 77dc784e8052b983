"""The page under ``/ui`` of every admin port: what it is told, its routes, its files.

``dashboard_routes`` (routes.py) makes it of a Watched; ``isthmus dashboard`` makes one page of
several programs (merging.py).
"""
