"""Runs: settings → plan → rollouts in a folder, with whatever that takes opened and closed around it."""
