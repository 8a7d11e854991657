"""What the backends for inference engines share: plans made at start-up, and which versions of an engine are known. It imports neither torch nor an
engine."""
