"""Datasets: rows from where they lie (JSONL, CSV, Parquet, Hugging Face), made into tasks, checked, split, compared.

What is written appears whole or not at all, and the same input and seed give the same bytes. A row that is left out is
counted and named. JSONL is cut at the newline byte and nowhere else.
"""
