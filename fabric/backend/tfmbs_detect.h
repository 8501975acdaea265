/* Finds the products of a matrix with a vector in a program that tells nothing of itself, by the order
 * in which it reads the pages of a model: without names, symbols or the file's contents. A part of
 * libtfmbs_intercept.so, which TFMBS_DETECT turns on. The model is a mapped file, or memory of the
 * program's own that was filled from a file with read, pread or fread.
 *
 * A pass takes the right to read a mapping away. A page is given back when a thread asks for it
 * (SIGSEGV), and who asked is noted: each page once. What is read from beginning to end, by one thread
 * or by several side by side, is a scan. A product reads its matrix in one scan, and does so again for
 * each token. So several passes are compared: a bound that most of them have is one of a matrix,
 * another bound is a thread's that was interrupted.
 *
 * Pages tell where a matrix lies and how large it is, not how many rows it has: half as many of twice
 * the length are read in the same way. Rows and columns are only said where the program hands an op to
 * ggml_graph_compute, by the lengths of the vectors that go in and come out, and only if the matrix
 * between them is the region that was found.
 *
 * While a pass lasts, the program is slow, and the kernel may not use the memory for it (EFAULT): this
 * is an instrument, not for every day.
 *
 * Functions whose names begin with note are called by the functions that stand for the program's. They
 * do nothing while nothing is to be detected. */
#ifndef TFMBS_DETECT_H
#define TFMBS_DETECT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads of fewer bytes are not noted. */
enum { MIN_FILL = 256 };

/* What an op of the program's says: how long the vectors are that a matrix multiplies (cols) and makes
 * (rows), where it lies and how many bytes it has. Of experts there are count matrices, which follow
 * each other. */
struct op {
	uintptr_t from;
	uint64_t size;
	uint32_t count, rows, cols;
};

/* Begins to detect. to is where results are written, a path or "-" for standard error; it must stay. */
void start_detection(const char *to);
bool is_detecting(void);

/* Stops detecting in a child after a fork: the thread that watches is the parent's. */
void abandon_detection(void);

/* Ends the pass that is under way, and waits until what was found is said. */
void finish_detection(void);

/* A file was mapped. at may be MAP_FAILED. */
void note_mapping(void *at, size_t length, int prot, int fd, int64_t offset);

/* Memory goes, or is to be used in another way: to be called before it does. */
void note_unmapping(const void *at, size_t length);

/* Memory is to be read into: to be called before that, since the kernel could not write to memory that
 * a pass has taken away. */
void note_filling(uintptr_t from, size_t length);

/* Memory was filled with what is at offset in a file; -1: with what is before the file's current offset. */
void note_fill(const void *at, size_t length, int fd, int64_t offset);

/* The program hands over an op. */
void note_op(struct op o);

/* sigaction of SIGSEGV for the program: while something is watched, its handler gets the signals that
 * the detection did not cause. */
int set_program_handler(const struct sigaction *new, struct sigaction *old);

#endif
