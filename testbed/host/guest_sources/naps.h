/* How long a rank sleeps between two looks at its messages: see node_agent/programs/naps.py, which has the same. */
#pragma once

#include <stdbool.h>

struct naps {
    double next_s, slept_s;
    bool foreseen; /* all naps so far */
};

static inline double least_of(double a, double b)
{
    return a < b ? a : b;
}

/* `last_s`: what naps_waited_s() said of the last wait at this place of the iteration, or 0. */
static inline struct naps first_naps(double last_s)
{
    const double first_s = 20e-6, foreseen_s = 0.5;
    double next_s = last_s / 2 > first_s ? least_of(last_s / 2, foreseen_s) : first_s;
    return (struct naps){.next_s = next_s, .foreseen = next_s > first_s};
}

static inline double next_nap_s(struct naps *naps)
{
    double length_s = naps->next_s;
    naps->foreseen = naps->foreseen && naps->slept_s == 0.0;
    naps->slept_s += length_s;
    double most_s = least_of(0.05 * naps->slept_s, 50e-3);
    naps->next_s = least_of(1.5 * length_s, most_s > 1e-3 ? most_s : 1e-3);
    return length_s;
}

static inline double naps_waited_s(const struct naps *naps)
{
    return naps->foreseen ? 0.0 : naps->slept_s;
}
