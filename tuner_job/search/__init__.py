"""Strategies: knobs, results so far and the budget decide the next candidates. Pure and seeded."""
