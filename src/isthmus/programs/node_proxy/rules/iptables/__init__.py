"""Rules for iptables, pure: a ``ServiceView`` → an ``IptablesRuleset`` → iptables-restore's input.

base.py has the chains' names and the rules that are always there, ports.py the rules of one port,
ruleset.py all together and what changed since the last time, and saved.py what has to be written
where something is in the kernel already. The rules are kube-proxy's (v1.36), word for word where it
has them; ``isthmus.programs.node_proxy.kernel.iptables`` applies them.
"""
