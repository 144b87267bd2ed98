"""Family ``torch-itself``: what torch's own collectives and their derivatives do, whatever the subject."""
