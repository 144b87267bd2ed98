"""What a subject may offer, one class per family of probes; a library that has not answers with Unsupported."""
