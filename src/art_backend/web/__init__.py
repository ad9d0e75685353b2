"""HTTP plumbing: request bodies, connections, and background work."""
