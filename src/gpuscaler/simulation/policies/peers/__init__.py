"""Models of the autoscalers that people run today, as policies of a replay. Each says where its rules come from."""
