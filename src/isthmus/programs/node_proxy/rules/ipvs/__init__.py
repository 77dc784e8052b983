"""kube-proxy's ipvs mode, pure: a view becomes ipset entries, iptables rules and virtual servers.

sets.py has the sets, servers.py the virtual servers, plan.py fills them from a view and renders the
iptables rules. ``isthmus.programs.node_proxy.kernel.ipvs`` applies everything to the kernel.
"""
