"""How latency is sampled, and what may be concluded from it."""
