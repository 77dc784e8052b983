"""The pure part of the node service proxy: Services, endpoints and a detector become rules.

shapes.py and reading.py decode API objects, tracker.py keeps them, model.py has the values that
matter to a packet; settings.py and detectors.py describe this node. iptables/, nftables/ and ipvs/
render a ``ServiceView`` into rules, which ``isthmus.programs.node_proxy.kernel`` applies.
rendering.py and explaining*.py show rules to users.
"""
