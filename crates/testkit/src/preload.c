/* Loaded with LD_PRELOAD: steps the clock and makes allocations fail.
 *
 *   STEPPED_CLOCK=<file>      a file of eight bytes: the number of seconds added to the time of day
 *   NO_MEMORY_AFTER_SYNC=<n>  after the WAL was synced, n allocations succeed and all later ones fail;
 *                             with "once:" before the number, only the next one fails. Not inherited.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static volatile int64_t *step;
static long left = -1;
static int synced, once;

__attribute__((constructor)) static void begin(void) {
    const char *clock = getenv("STEPPED_CLOCK");
    int fd = clock ? open(clock, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *map = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) step = map;
        close(fd);
    }
    const char *number = getenv("NO_MEMORY_AFTER_SYNC");
    if (number) {
        once = strncmp(number, "once:", 5) == 0;
        left = atol(once ? number + 5 : number);
        unsetenv("NO_MEMORY_AFTER_SYNC");
    }
}

int clock_gettime(clockid_t which, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(which, time);
    if (step && done == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) time->tv_sec += *step;
    return done;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

static int after(int done, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    if (length > 4 && memcmp(path + length - 4, "-wal", 4) == 0) synced = 1;
    return done;
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return after(real(fd), fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return after(real(fd), fd);
}

static int none_left(void) {
    if (!synced || left < 0) return 0;
    if (left > 0) {
        left--;
        return 0;
    }
    if (once) left = -1;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return none_left() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return none_left() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return none_left() ? NULL : __libc_realloc(old, size); }
int posix_memalign(void **into, size_t align, size_t size) {
    if (none_left()) return ENOMEM;
    *into = __libc_memalign(align, size);
    return *into ? 0 : ENOMEM;
}
