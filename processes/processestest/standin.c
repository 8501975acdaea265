//go:build ignore

/* (The first line keeps the go command, which would require cgo for a C file, from compiling this one.)
 *
 * This program stands for one that computes with ggml, or that starts others which do. Its arguments say what it does,
 * in turn:
 *
 *   model FILE            maps a file as llama.cpp maps a model
 *   code FILE             maps a file as the loader maps the code of a library
 *   wait                  waits for SIGUSR1
 *   child COMMAND... ;    starts a command
 *
 * Then it prints its process id, and ends when its standard input does. Its children have the same standard input, and
 * are killed when it has ended. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifdef GGML
/* as in a program that ggml was linked into */
int ggml_add(int a, int b) { return a + b; }
#endif

static void fail(const char *what) {
	perror(what);
	exit(1);
}

static void map_file(const char *path, int protection) {
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		fail(path);
	if (mmap(NULL, 4096, protection, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		fail(path);
	close(fd);
}

int main(int argc, char **argv) {
	sigset_t usr1;
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "wait")) {
			int got;
			printf("%d\n", getpid());
			fflush(stdout);
			sigwait(&usr1, &got);
		} else if (!strcmp(argv[i], "model") && i + 1 < argc) {
			map_file(argv[++i], PROT_READ);
		} else if (!strcmp(argv[i], "code") && i + 1 < argc) {
			map_file(argv[++i], PROT_READ | PROT_EXEC);
		} else if (!strcmp(argv[i], "child") && i + 1 < argc) {
			char **command = &argv[i + 1];
			while (i < argc && strcmp(argv[i], ";"))
				i++;
			if (i < argc)
				argv[i] = NULL;
			pid_t pid = fork();
			if (pid < 0)
				fail("fork");
			if (pid == 0) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				sigprocmask(SIG_UNBLOCK, &usr1, NULL);
				execv(command[0], command);
				fail(command[0]);
			}
		} else {
			fprintf(stderr, "standin: what is %s?\n", argv[i]);
			return 2;
		}
	}
	printf("%d\n", getpid());
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
