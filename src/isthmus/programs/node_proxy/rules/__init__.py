"""The node service proxy, pure: Services, endpoints and a local-traffic detector become rules.

objects.py and reading.py have the objects of the API, tracker.py keeps them, model.py is what a
packet can meet of them; settings.py and detectors.py say what is true on this node. iptables/,
nftables/ and ipvs/ turn a ``ServiceView`` into rules, which
``isthmus.programs.node_proxy.kernel`` brings into the kernel. rendering.py and explaining*.py show
rules to people.
"""
