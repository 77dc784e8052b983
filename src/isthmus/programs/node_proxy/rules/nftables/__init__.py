"""Rules for nftables, pure: a ``ServiceView`` → an ``NftablesRuleset`` → text → messages.

base.py has the names and what is there before any Service, ports.py what one port needs, ruleset.py
all together and what changed, text.py the transactions, and compiling*.py make messages for the
kernel of those. ``isthmus.programs.node_proxy.kernel.nftables`` applies them.
"""
