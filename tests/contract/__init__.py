"""The contract of attention metadata, checked on the real engine while it serves requests."""
