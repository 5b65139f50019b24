/* The rank of an MPI job: what it says to its process manager goes to the host, line by line, and the answers back. */
#ifndef PMI_H
#define PMI_H

#include <poll.h>

#include "wire.h"

/* Start a rank as the order says; return its pid, or 0 and say why in `error`. */
int pmi_run(const struct fields *order, char *const *arguments, char *error, size_t room);
/* Hand the rank the answer to one of its lines, once; say in `error` why that cannot be. */
void pmi_answer(const struct fields *order, char *error, size_t room);
/* Take the rank's next line, once the one before is answered; it is told. */
void pmi_look(void);
/* Fill in what to poll for; return how many. */
unsigned pmi_poll(struct pollfd *into);

#endif
