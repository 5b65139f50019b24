/* What a program stores for the agent to look at, in the file `progress`; all little endian, as x86 and ARM have it. */
#ifndef PACE_H
#define PACE_H

#include <stdint.h>

/*
 * The program writes, the agent reads, and nobody waits: a word may be an iteration younger than its neighbour.
 * `longest_ns` alone is written by both: the agent takes it and leaves 0.
 */
struct pace {
    uint64_t units;      /* of the job's demand, done */
    uint64_t steps;      /* iterations done */
    uint64_t longest_ns; /* of them, since the agent looked last */
    uint64_t compute_ns; /* in all of them */
    uint64_t comm_ns;
};

static inline uint64_t pace_get(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void pace_set(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline uint64_t pace_take(uint64_t *word)
{
    return __atomic_exchange_n(word, 0, __ATOMIC_RELAXED);
}

#endif
