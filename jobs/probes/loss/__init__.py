"""Family ``loss``: cross entropy over a sequence whose parts lie on different ranks, and what it sends back."""
