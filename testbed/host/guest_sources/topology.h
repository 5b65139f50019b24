/* Who talks to whom: see node_agent/programs/topology.py. */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include "life.h"

/* The ranks that `rank` exchanges messages with, ascending, never itself; `into` has room for `ranks`. */
unsigned neighbours(enum topology topology, unsigned rank, unsigned ranks, unsigned *into);

#endif
