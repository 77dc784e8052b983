"""What every program stands in: its life, its operator ports, metrics, dashboard and workers."""
