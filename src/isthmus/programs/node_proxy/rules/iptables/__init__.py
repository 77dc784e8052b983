"""Rules for iptables, pure: a ``ServiceView`` becomes an ``IptablesRuleset`` and its text.

base.py has the names of chains and the rules that exist without any Service, ports.py the rules of
one port, ruleset.py whole rulesets, their differences, and writes over rules found in the kernel.
Where kube-proxy (v1.36) has a rule, it is copied word for word.
``isthmus.programs.node_proxy.kernel.iptables`` applies them.
"""
