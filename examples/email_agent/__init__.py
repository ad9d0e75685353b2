"""An agent that finds answers in a mailbox, with tools."""
