"""Rules for ipvs, as values and text."""
