/* The file in which a rank's waits are counted; node_agent/programs/waits.py reads it, and agent.c in a guest. */
#ifndef WAITS_H
#define WAITS_H

#include <stdint.h>

#define WAITS_MOST_RANKS 1024

struct waits {
    uint64_t ranks; /* of the job; 0 until MPI has started */
    uint64_t ns_by_rank[WAITS_MOST_RANKS];
};

#endif
