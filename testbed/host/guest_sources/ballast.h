/* The memory of a guest, filled up with what no host can compress or share: see node_agent/programs/ballast.py. */
#ifndef BALLAST_H
#define BALLAST_H

#include <stdint.h>

/* What stays free, so that the kernel, the agent and MPI's connections go on living. */
#define RESERVE_MIB 28

/* Reserve what is available but for the reserve, and fill the first `touched_frac` of it with what `seed` begins; return
   how many MiB were reserved and how long it took. */
uint64_t ballast_fill(uint64_t seed, double touched_frac, double *touch_s);

#endif
