"""Family ``attention``: attention over a sequence that lies on several ranks, by way of exchanges."""
