"""Chips and clusters: data sheets with their sources, and the spellings that name them."""
