"""The HTTP interface, under /api/v1: what can be asked, how it is answered, and who may ask.

On the straight line this is the door: it validates, authorises and stores, and starts nothing itself.
"""
