"""Family ``exchange``: the dim-0 exchange, the exchange between sequence and heads, and the bare all-to-all."""
