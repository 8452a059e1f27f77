/* Loaded with LD_PRELOAD. Makes the clock run CLOCK_SPEED times as fast, so that tests need not wait for a timeout of
 * a minute; and the time of day stand CLOCK_BEHIND seconds behind, for what happened earlier. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long speed = 1, behind = 0;
static struct timespec began;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CLOCK_SPEED");
    if (text) speed = atol(text);
    text = getenv("CLOCK_BEHIND");
    if (text) behind = atol(text);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &began);
}

int clock_gettime(clockid_t which, struct timespec *time) {
    long failed = syscall(SYS_clock_gettime, which, time);
    if (!failed && which == CLOCK_REALTIME) time->tv_sec -= behind;
    if (failed || which != CLOCK_MONOTONIC || speed == 1) return (int)failed;
    long long passed = (time->tv_sec - began.tv_sec) * 1000000000LL + time->tv_nsec - began.tv_nsec;
    long long now = began.tv_nsec + passed * speed;
    time->tv_sec = began.tv_sec + now / 1000000000;
    time->tv_nsec = now % 1000000000;
    return 0;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int milliseconds) {
    /* Rounded up: otherwise the caller would spin until the timer is due. */
    if (milliseconds > 0) milliseconds = (int)((milliseconds + speed - 1) / speed);
    return (int)syscall(SYS_epoll_pwait, fd, events, most, milliseconds, NULL, 8);
}
