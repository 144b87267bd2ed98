"""Family ``model``: a small decoder whose attention is the subject's, trained for one step over several ranks."""
