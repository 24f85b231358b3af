"""gymbox: evaluate and improve LLM agents with environments in which every task gets a container of its own."""

__version__ = "0.1.0"
