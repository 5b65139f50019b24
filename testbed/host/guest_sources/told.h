/* What the guest has told by itself, numbered, kept for whoever attaches later. */
#ifndef TOLD_H
#define TOLD_H

#include "wire.h"

#define RETAINED_OUT_BYTES 65536 /* of the text of printed lines; older ones are forgotten */
#define RETAINED_OTHER 2048      /* events of other kinds; a guest has only a few */

/* Take the frame of an event as `seq` counts it; `out_bytes` is the size of its text if it is a printed line. */
void told_add(const char *kind, void (*fill)(struct message *m, const void *from), const void *from, size_t out_bytes);
uint64_t told_seq(void);
/* Keep the event of this number no longer: nobody needs it who attaches later. */
void told_forget(uint64_t seq);
/* Telling goes on after `seq`. */
void told_rewind(uint64_t seq);
/* Copy the next frame and step over it; return its length, 0 if all is told. */
size_t told_next(char *frame);

#endif
