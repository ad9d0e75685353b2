"""An agent that writes titles which people vote for and which are true."""
