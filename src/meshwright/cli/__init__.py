"""The command line: one file a verb, which parses, calls the API and renders. No arithmetic."""
