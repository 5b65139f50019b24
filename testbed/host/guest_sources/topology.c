#include "topology.h"

#include <stdlib.h>
#include <string.h>

#include "report.h"

/* The places one step away on a line or a circle, marked as ranks `first + place * stride`. */
static void steps(bool *near, unsigned place, unsigned length, bool wraps, unsigned first, unsigned stride)
{
    if (place > 0 || wraps)
        near[first + (place + length - 1) % length * stride] = true;
    if (place + 1 < length || wraps)
        near[first + (place + 1) % length * stride] = true;
}

unsigned neighbours(enum topology topology, unsigned rank, unsigned ranks, unsigned *into)
{
    bool *near = calloc(ranks, sizeof *near);
    if (!near)
        fail("no memory for %u ranks", ranks);
    if (topology == ALL_TO_ALL) {
        memset(near, true, ranks * sizeof *near);
    } else if (topology == TREE) {
        if (rank)
            near[(rank - 1) / 2] = true;
        for (unsigned child = 2 * rank + 1; child <= 2 * rank + 2 && child < ranks; child++)
            near[child] = true;
    } else if (topology == LINEAR || topology == RING) {
        steps(near, rank, ranks, topology == RING, 0, 1);
    } else {
        unsigned rows = 1; /* of the squarest full grid */
        for (unsigned divisor = 1; divisor * divisor <= ranks; divisor++)
            if (ranks % divisor == 0)
                rows = divisor;
        unsigned columns = ranks / rows, row = rank / columns, column = rank % columns;
        steps(near, column, columns, topology == TORUS, row * columns, 1);
        steps(near, row, rows, topology == TORUS, column, columns);
    }
    near[rank] = false;
    unsigned count = 0;
    for (unsigned other = 0; other < ranks; other++)
        if (near[other])
            into[count++] = other;
    free(near);
    return count;
}
