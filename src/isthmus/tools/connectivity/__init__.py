"""The commands that show or use the way of a dial: config, egress, policy, dial, curl, resolve."""
