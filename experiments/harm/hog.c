//go:build ignore

// (The first line keeps the go command, which would require cgo for a C file, from compiling this one.)
//
// hog is a process that suddenly needs memory. It has no run-time system, so it takes exactly the memory that it is
// told to take.
//
//     hog BYTES BYTES_PER_SECOND CGROUP.PROCS...
//
// It waits for the end of its standard input, so that many can begin at once. Then it enters the control groups with
// these files, and takes the memory: at this rate, or with 0 as fast as the kernel gives it. It writes one byte when it
// has everything, and holds it until it is killed. It ends by itself if its parent does. Exit code: 1 failure, 2 wrong
// usage, 125 if it cannot enter a group.

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
	enum {
		PAGE = 4096,
		STEP = 256,
	}; // STEP: pages between two looks at the clock
	if (argc < 3) return 2;
	size_t bytes = strtoull(argv[1], NULL, 10);
	double rate = strtod(argv[2], NULL);
	pid_t parent = getppid();
	char c;
	while (read(0, &c, 1) > 0) {}
	if (getppid() != parent) return 1; // the input ended because the parent did
	for (int i = 3; i < argc; i++) {
		int fd = open(argv[i], O_WRONLY | O_CLOEXEC);
		if (fd < 0 || write(fd, "0", 1) != 1) return 125;
		close(fd);
	}
	volatile char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) return 1;
	double start = now();
	for (size_t i = 0; i < bytes; i += PAGE) {
		p[i] = 1;
		if (rate > 0 && i / PAGE % STEP == 0) {
			double early = i / rate - (now() - start);
			if (early > 0) usleep(early * 1e6);
		}
	}
	if (write(1, "x", 1) != 1) return 1;
	while (getppid() == parent) usleep(100000);
	return 0;
}
