/* Pseudo-random numbers defined to the bit, as node_agent/programs/words.py defines them; all modulo 2^64. */
#ifndef WORDS_H
#define WORDS_H

#include <stddef.h>
#include <stdint.h>

#define GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t mix64(uint64_t value)
{
    uint64_t z = value + GOLDEN;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* One seed for a sequence: fold each part in turn, beginning with 0. */
static inline uint64_t seed_with(uint64_t seed, uint64_t part)
{
    return mix64(seed ^ part);
}

static inline uint64_t seed_of2(uint64_t a, uint64_t b)
{
    return seed_with(seed_with(0, a), b);
}

static inline uint64_t seed_of3(uint64_t a, uint64_t b, uint64_t c)
{
    return seed_with(seed_of2(a, b), c);
}

static inline uint64_t seed_of4(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return seed_with(seed_of3(a, b, c), d);
}

static inline void stream(uint64_t seed, uint64_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        words[i] = mix64(seed + i * GOLDEN);
}

/* A checksum in which position counts. */
static inline uint64_t fold(const uint64_t *words, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (words[i] ^ (words[i] >> 32)) * (2 * i + 1);
    return sum;
}

#endif
