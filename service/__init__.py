"""The service: submissions, planning, judging, storing and reading back. Imports neither torch nor docker."""
