/* How long a rank sleeps between two looks at its messages: see node_agent/programs/naps.py, which has the same. */
#pragma once

struct naps {
    double next_s, slept_s;
};

static const struct naps FIRST_NAPS = {20e-6, 0};

static inline double next_nap_s(struct naps *naps)
{
    double length_s = naps->next_s < 20e-3 ? naps->next_s : 20e-3;
    naps->slept_s += length_s;
    double most_s = 0.05 * naps->slept_s;
    if (most_s < 1e-3)
        most_s = 1e-3;
    naps->next_s = 1.5 * length_s < most_s ? 1.5 * length_s : most_s;
    return length_s;
}
