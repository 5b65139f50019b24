/* The work unit and the workers that do it: see node_agent/programs/kernel.py, whose checksums these are. */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdint.h>

#define LCG_A 6364136223846793005u
#define LCG_C 1442695040888963407u
#define ELEMENTS 32768 /* 64-bit words of one worker: they fit in the L2 cache of a core */
#define MAX_WORKERS 256

void kernel_start(uint64_t seed, uint64_t rank, unsigned workers);
void kernel_run(uint64_t units);
uint64_t kernel_checksum(void);

#endif
