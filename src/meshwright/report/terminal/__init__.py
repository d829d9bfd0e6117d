"""Results for a person at a terminal. Every renderer takes a result and a rich console."""
