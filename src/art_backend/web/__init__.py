"""HTTP plumbing: request bodies and connections."""
