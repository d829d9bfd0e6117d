"""What results look like: records, JSON, and text for a terminal."""
