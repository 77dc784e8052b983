"""Commands about where a dial goes: config, egress, policy, dial, curl, resolve."""
