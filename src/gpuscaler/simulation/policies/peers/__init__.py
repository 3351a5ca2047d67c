"""Models of other widely used autoscalers, as policies of a replay. Each cites the source of its rules."""
