"""Models on disk and in memory: base models, origins, exports, and the type they compute in."""
