"""Rules for nftables, pure: a ``ServiceView`` becomes an ``NftablesRuleset``, text, and messages.

base.py has the names and the rules that exist without any Service, ports.py the rules of one port,
ruleset.py whole rulesets, their differences and transactions; compiling*.py turn transactions into
netlink messages. ``isthmus.programs.node_proxy.kernel.nftables`` applies them.
"""
