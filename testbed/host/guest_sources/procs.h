/* The processes that `run` started, what they print, and all that descends from them. */
#ifndef PROCS_H
#define PROCS_H

#include <poll.h>

#include "wire.h"

#define MAX_PROCS 64 /* with an open output at one time */

/* Orphans come to this process from now on. */
void procs_begin(void);
/* The place of a rank in its MPI job, and its end of the connection to its process manager. */
struct place {
    int manager;
    uint64_t rank, ranks;
};
/* Start a process, at a place in an MPI job if it has one; return its pid, or 0 and say why in `error`. */
int procs_run(char *const *arguments, const struct place *place, char *error, size_t room);
void procs_kill(int number);
/* Fill in what to poll for; return how many. */
unsigned procs_poll(struct pollfd *into);
/* Read what they printed and see who ended; events are told. `last_words` is called before an end is told. */
void procs_look(void (*last_words)(void));

#endif
