"""Tokens and their meaning: the message tree, rendering, parsing, bridging, and the notation of tool calls."""
