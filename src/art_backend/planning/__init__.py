"""Whether a model fits into a device's memory, told before anything is loaded."""
