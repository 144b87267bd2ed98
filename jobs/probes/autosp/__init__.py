"""Family ``autosp``: the operators that a compiler pass puts into a traced model to split its sequence over ranks."""
