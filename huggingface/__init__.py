"""Models of Hugging Face `transformers` as models of this project, and back. FAMILIES is in families.py."""
