"""Rules for iptables, pure: a ``View`` → a ``Ruleset`` → what iptables-restore reads.

names.py has the chains' names, ports.py and port_chains.py the rules of one port, base.py those
that are always there, ruleset.py all together, renderer.py what changed since the last time, and
saved.py and syncing.py what has to be written where something is in the kernel already. The rules
are kube-proxy's (v1.36), word for word where it has them;
``isthmus.programs.node_proxy.kernel.iptables`` applies them.
"""
