"""The node service proxy, pure: Services + endpoints + a local-traffic detector → rules.

Values are in model.py, what is true on this node in settings.py and detectors.py. iptables/,
nftables/ and ipvs/ turn a ``View`` into text; ``isthmus.nodeproxy`` brings it into the kernel.
"""
