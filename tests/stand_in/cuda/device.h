/* The GPU that is not there: facts from `device.txt` beside the library (as it was found, links not followed).

   One `name = value` a line. Names that may stand several times:
     process = PID BYTES          another process on the GPU
     throttle = N MASK            NVML's reasons from this process's N-th question on (counted from 0)
     fail = FUNCTION CODE [N]     that function returns CODE, from its N-th call in this process on (suffixes _v2, _v3 left out)
   Names that are absent have the defaults of the callers below. */

#ifndef STAND_IN_DEVICE_H
#define STAND_IN_DEVICE_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* The value of `name`, or `otherwise`. */
const char *fact(const char *name, const char *otherwise);
/* The same as a number; 0x… is hexadecimal. */
unsigned long long number(const char *name, unsigned long long otherwise);
/* The i-th value of a name that may stand several times; NULL past the last. */
const char *each(const char *name, size_t i);
/* What the script wants this call of `function` to return; 0: what it should. */
int scripted(const char *function);

#pragma GCC visibility pop

#endif
