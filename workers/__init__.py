"""The workers: they claim jobs, run them inside runtimes and collect what comes out as untrusted input."""
