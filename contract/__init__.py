"""What all packages agree on: batches, windows, vocabularies, random keys, and the error for invalid input.

NumPy only. This package imports no other package of this project.
"""
