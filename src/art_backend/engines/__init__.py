"""Inference: the engines, the client that speaks their contract, and the processes they live in."""
