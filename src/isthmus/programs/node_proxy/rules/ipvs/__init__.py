"""kube-proxy's ipvs mode, pure: a view → ipset entries, iptables rules and virtual servers.

sets.py has the sets, servers.py the virtual servers, plan.py puts into them what a view says, and
rules.py writes the iptables part.
``isthmus.programs.node_proxy.kernel.ipvs`` brings all of it into the kernel.
"""
