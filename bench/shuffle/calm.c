/* Preloaded (LD_PRELOAD), this has a thread sleep where it would only yield its processor: who looks for
 * something again and again takes next to no processor time for it. */
#include <sched.h>
#include <time.h>

int sched_yield(void)
{
    const struct timespec moment = {0, 100 * 1000};
    return nanosleep(&moment, NULL);
}
