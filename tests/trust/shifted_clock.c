/* A library to preload: it shifts the system's clock by the seconds in the file $SHIFTED_CLOCK, as a correction of the
 * time would, and leaves the monotonic clock alone. Ray's own servers, which have nothing of ours in them, keep the real
 * clock: they wait by system calls that no library can shift. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *shift = &none;

__attribute__((constructor)) static void map_file(void) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    const char *path = getenv("SHIFTED_CLOCK");
    if (length < 0 || path == NULL) return;
    program[length] = '\0';
    if (strstr(program, "/raylet") != NULL || strstr(program, "/gcs_server") != NULL) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shift = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &fine) != 0) return -1;
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (now != NULL) *now = fine.tv_sec;
    return fine.tv_sec;
}
