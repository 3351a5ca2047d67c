"""The time that tests with real processes and sockets wait."""

#: Seconds until a test gives up waiting. This is no measure of speed: on a busy machine a start may take half a minute. Only a failing test
#: waits this long.
PATIENCE = 120.0
