"""How long tests over real processes and sockets wait."""

#: Seconds until what must come is given up. It says nothing about how fast anything is: beside other load a start may take half a minute.
#: Only a test that fails waits so long.
PATIENCE = 120.0
