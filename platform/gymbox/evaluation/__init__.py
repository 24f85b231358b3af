"""Evaluation: what the rollouts of a run say, how sure that is, and whether another run does better."""
