"""What runs inside a runtime: the oracle, the controls and the subject's ranks.

Only the standard library, torch and the subject are imported here, and nothing that happens here is a verdict:
a job reports tensors, and the service judges them.
"""
