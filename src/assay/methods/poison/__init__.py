"""Labels and features changed by an enemy, and what a learner makes of them."""
