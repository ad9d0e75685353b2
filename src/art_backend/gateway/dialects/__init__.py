"""The protocols that agents speak: chat completions, completions, responses, and Anthropic's messages."""
