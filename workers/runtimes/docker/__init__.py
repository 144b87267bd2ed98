"""Runtimes as container images: what a stranger's code may run in.

On the straight line this is the executor of production. Images are made from the catalogue's locks (``images``) and
jobs run in containers of them; ``engine`` is the way to whatever engine this host has.
"""
