package backend_test

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// region is a part of a file, in bytes, and the shape of the matrix in it; no rows: the shape is not known.
type region struct{ from, size, rows, cols int64 }

// isLike reports whether two regions are nearly the same: their intersection is at least four fifths of their union.
func (r region) isLike(o region) bool {
	both := min(r.from+r.size, o.from+o.size) - max(r.from, o.from)
	return both > 0 && float64(both) >= 0.8*float64(r.size+o.size-both)
}

// matrices lists the matrices of a model that can be detected (all), each expert's by itself. Others are too
// small, or single rows of them are read.
func matrices(t *testing.T, model string) (all, others []region) {
	t.Helper()
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors {
		w := &f.Tensors[i]
		switch n := int64(w.Experts()); {
		case len(w.Shape) < 2:
		case n > 0 && len(w.Shape) == 3:
			for e := range n {
				all = append(all, region{w.Offset + e*w.ExpertStride(), w.ExpertStride(), w.Shape[1], w.Shape[0]})
			}
		case w.Name == "token_embd.weight" || w.Size < 8*4096:
			others = append(others, region{w.Offset, w.Size, w.Shape[1], w.Shape[0]})
		default:
			all = append(all, region{w.Offset, w.Size, w.Shape[1], w.Shape[0]})
		}
	}
	return all, others
}

// detected reads what TFMBS_DETECT has written. The model must have been in that kind of memory: mapped or read.
func detected(t *testing.T, path, memory string) (all []region) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	columns := []string{"file", "offset_bytes", "size_bytes", "confidence", "passes", "memory", "rows",
		"columns", "shape_from"}
	if err != nil || len(rows) < 1 || !slices.Equal(rows[0], columns) {
		t.Fatalf("rows %v, error %v; want the columns %v", rows, err, columns)
	}
	for _, row := range rows[1:] {
		var r region
		for i, to := range map[int]*int64{1: &r.from, 2: &r.size, 6: &r.rows, 7: &r.cols} {
			if *to, err = strconv.ParseInt(row[i], 10, 64); err != nil && (i < 6 || row[i] != "" || row[8] != "") {
				t.Fatal(row, err)
			}
		}
		if row[5] != memory || r.rows > 0 && row[8] != "op" {
			t.Errorf("%v: want memory %s", row, memory)
		}
		all = append(all, r)
	}
	return all
}

// TestDetect: matrices are found by the order in which their pages are read, while the program's text stays the
// same. How exactly they are found depends on timing, and is logged. How many bytes are found does not.
// TFMBS_DETECT_MODEL=model.gguf and TFMBS_DETECT_TOKENS=400 take another model, and another length of its texts.
func TestDetect(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildInterposer(t)
	models := map[string]string{
		"dense": llamatest.Model(t, synth.Config{Layers: 4, Embd: 512, FF: 1536, Heads: 8, KVHeads: 4,
			Type: gguf.Q8_0, Seed: 3}),
		"mixture": llamatest.Model(t, synth.Config{Layers: 3, Embd: 512, FF: 512, Heads: 8, KVHeads: 4,
			Experts: 8, Used: 2, Type: gguf.Q8_0, Seed: 3}),
	}
	tokens := 120
	if path := os.Getenv("TFMBS_DETECT_MODEL"); path != "" {
		models = map[string]string{filepath.Base(path): path}
		if n, err := strconv.Atoi(os.Getenv("TFMBS_DETECT_TOKENS")); err == nil {
			tokens = n
		}
	}
	memories := map[string]string{"": "mapped", "none": "read"} // by llama.cpp's load mode
	detect := func(name, model, mode string, want []int32) {
		t.Run(strings.TrimSuffix(name+"-"+mode, "-"), func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "found.csv")
			o := llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true, LoadMode: mode}
			// Where the socket cannot be, nobody waits for a device.
			environ := []string{"TFMBS_SOCKET=/dev/null/none", "TFMBS_DEVICE=/nowhere", "LD_PRELOAD=" + lib,
				"TFMBS_DETECT=" + to}
			const line = "matrices were detected in "
			texts, said := repeatUntil(t, in, o, environ, func(x target) {
				for !strings.Contains(x.stderr(), line+model) && !x.ended() {
					time.Sleep(5 * time.Millisecond)
				}
			})
			compareTexts(t, texts, want)
			if !strings.Contains(said, line+model) {
				t.Errorf("standard error: %q, want what was detected", said)
			}
			t.Logf("%d texts of %d tokens: %s", len(texts), tokens, said)
			truth, others := matrices(t, model)
			found := detected(t, to, memories[mode])
			among := func(r region, all []region) bool { return slices.ContainsFunc(all, r.isLike) }
			var right, seen, shaped int
			var bytes, all int64
			for _, r := range found {
				bytes += r.size
				if among(r, truth) {
					right++
				}
			}
			for _, r := range found {
				is := func(o region) bool { return o.isLike(r) && o.rows == r.rows && o.cols == r.cols }
				if r.rows > 0 && !slices.ContainsFunc(truth, is) && !slices.ContainsFunc(others, is) {
					t.Errorf("%d rows and %d columns were detected at %d, %d bytes; no such matrix is there",
						r.rows, r.cols, r.from, r.size)
				}
				if r.rows > 0 {
					shaped++
				}
			}
			for _, r := range truth {
				all += r.size
				if among(r, found) {
					seen++
				}
			}
			recall, precision := float64(seen)/float64(len(truth)), float64(right)/float64(max(len(found), 1))
			part := float64(bytes) / float64(all)
			t.Logf("%d matrices, %d detected, %d with rows and columns: recall %.3f, precision %.3f, %.3f of the bytes",
				len(truth), len(found), shaped, recall, precision, part)
			if shaped < right/2 {
				t.Errorf("%d matrices have rows and columns, want at least half of %d", shaped, right)
			}
			if recall < 0.1 || precision < 0.1 || part < 0.95 || part > 1.05 {
				t.Errorf("recall %.3f, precision %.3f, %.3f of the bytes; want at least 0.1, 0.1, and 0.95 to 1.05",
					recall, precision, part)
			}
		})
	}
	for name, model := range models {
		want := generate(t, in, model, tokens)
		detect(name, model, "", want)
		detect(name, model, "none", want)
	}
}

// TestShape: rows and columns are found for a region that is an op's matrix, and for no other.
func TestShape(t *testing.T) {
	source, err := filepath.Abs("tfmbs_detect.c")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "shape")
	compile(t, program, "#include \""+source+`"
enum { P = 4096, Q = 512 * 544, DOWN = 100 * P, E = 2048 * P };
int main(void) {
	const struct op ops[] = {
		{0},
		{P + 64, Q, 1, 512, 512},      /* Q */
		{P + 64 + Q, Q, 1, 256, 1024}, /* V behind it, of another shape in as many bytes */
		{E, DOWN, 8, 300, 900},        /* eight experts */
		{9 * E, DOWN, 1, 300, 900},    /* a matrix for which two ops have another shape each */
		{9 * E + 64, DOWN, 1, 900, 300},
	};
	const struct { uintptr_t from, to; } regions[] = {
		{P, P + 69 * P},                      /* Q */
		{2 * P, P + 68 * P},                  /* Q, of which neighbours have the ends */
		{P + 68 * P, P + 137 * P},            /* V */
		{P, P + 137 * P},                     /* both */
		{P, P + 50 * P},                      /* a part */
		{P + 34 * P, P + 102 * P},            /* half of both */
		{E, E + DOWN},                        /* the first expert, */
		{E + 7 * DOWN, E + 8 * DOWN},         /* the last one, */
		{E + 3 * DOWN - P, E + 4 * DOWN + P}, /* one with the neighbours' ends, */
		{E + 3 * DOWN, E + 5 * DOWN},         /* two, */
		{E + 8 * DOWN, E + 9 * DOWN},         /* and what is behind them */
		{9 * E, 9 * E + DOWN},                /* where ops differ */
	};
	for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) {
		uint32_t rows, cols;
		find_shape(ops, sizeof ops / sizeof *ops, regions[i].from, regions[i].to, P, &rows, &cols);
		printf("%ux%u ", rows, cols);
	}
	return 0;
}
`, "-w", "-pthread")
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if want := "512x512 512x512 256x1024 0x0 0x0 0x0 300x900 300x900 300x900 0x0 0x0 0x0 "; err != nil ||
		string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}

// TestAgree has passes with planted touches. Threads are interrupted somewhere else in each pass, one of two
// comes late, a pause follows each matrix, and other pauses come by chance.
func TestAgree(t *testing.T) {
	source, err := filepath.Abs("tfmbs_detect.c")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "agree")
	compile(t, program, "#include \""+source+`"
static struct touch touches[1 << 16];
static size_t n;
static int64_t now;
static void touch(uint32_t unit, uint32_t thread, int64_t took) {
	touches[n++] = (struct touch){unit, thread, now += took};
}
/* The matrix of units first to end-1, by threads threads, each of which has a part. */
static void multiply(uint32_t first, uint32_t end, int threads, bool late) {
	uint32_t half = first + (end - first) / 2;
	if (threads == 1) for (uint32_t u = first; u < end; u++) touch(u, 1, u == first ? 7000 : rand() % 50 ? 5000 : 9000);
	else if (late) {
		for (uint32_t u = first; u < half; u++) touch(u, 1, 5000);
		for (uint32_t u = half; u < end; u++) touch(u, 2, 5000);
	} else
		for (uint32_t u = first; u < half || u - first + half < end; u++) {
			if (u < half) touch(u, 1, 5000);
			if (u - first + half < end) touch(u - first + half, 2, 5000);
		}
}
int main(int argc, char **argv) {
	static uint8_t bound[1002], inner[1002], cover[1002], pause[1002], pauses[1002];
	static struct scan scans[1000];
	static struct found_gemv g[1000];
	struct votes v = {bound, inner, cover, pause, 1000};
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	srand(1);
	for (int pass = 0; pass < 9; pass++) {
		n = 0;
		memset(pauses, 0, sizeof pauses);
		/* Q, V behind it in the file, K, output; a norm alone; a matrix that is read by some tokens only */
		multiply(100, 140, threads, pass == 3);
		multiply(140, 180, threads, pass == 5);
		multiply(40, 98, threads, pass == 5);
		touch(450, 1, 5000);
		multiply(200, 300, threads, false);
		if (pass % 2) multiply(300, 400, threads, false);
		multiply(500, 620, threads, pass == 7);
		size_t k = find_scans(touches, n, scans, 1000, pauses);
		count_votes(&v, scans, join_scans(scans, k), pauses);
	}
	size_t k = find_agreed(&v, g, 1000);
	for (size_t i = 0; i < k; i++) printf("%u-%u ", g[i].first, g[i].end);
	return 0;
}
`, "-w", "-pthread")
	for _, threads := range []string{"1", "2"} {
		out, err := exec.CommandContext(t.Context(), program, threads).CombinedOutput()
		if want := "40-98 100-140 140-180 200-300 300-400 500-620 "; err != nil || string(out) != want {
			t.Errorf("%s threads: %v: %q, want %q", threads, err, out, want)
		}
	}
}

// TestDetectStepsAside: memory that cannot be watched any more, because the program unmaps it or has a handler
// of its own, is left alone, and so are programs without a model.
func TestDetectStepsAside(t *testing.T) {
	t.Parallel()
	lib := buildInterposer(t)
	model := llamatest.Model(t, small)
	program := filepath.Join(t.TempDir(), "host")
	compile(t, program, `#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
static void own(int sig) { (void)sig; write(1, "own handler\n", 12); _exit(0); }
int main(int argc, char **argv) {
	struct stat st;
	int fd = open(argv[1], O_RDONLY);
	if (fd < 0 || fstat(fd, &st)) return 1;
	volatile char *p = mmap(0, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	char sum = 0;
	if (argc > 2) signal(SIGSEGV, own);
	for (int i = 0; i < 300; i++) {
		for (long k = 0; k < st.st_size; k += 4096) sum += p[k];
		usleep(1000);
	}
	munmap((void *)p, st.st_size / 2 & ~4095L); /* what is left stays readable */
	for (int i = 0; i < 100; i++) {
		for (long k = st.st_size / 2; k < st.st_size; k += 4096) sum += p[k];
		usleep(1000);
	}
	munmap((void *)p, st.st_size);
	write(1, "done\n", 5);
	if (argc > 2) *(volatile int *)8 = 1;
	return 0;
}
`, "-w")
	for _, args := range [][]string{{model}, {model, "own"}, {lib}} {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+lib, "TFMBS_DETECT=-")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		want := "done\n"
		if len(args) > 1 {
			want += "own handler\n"
		}
		if err != nil || !sameLines(out.String(), want) {
			t.Errorf("%v: error %v, output %q, want %q; standard error %q", args, err, out.String(), want,
				errs.String())
		}
	}
}

// TestDetectOwnMemory: memory into which a program reads a model is watched. The program may read into it
// again, fork, and free it meanwhile. What comes to lie there then keeps its rights.
func TestDetectOwnMemory(t *testing.T) {
	t.Parallel()
	lib := buildInterposer(t)
	model := llamatest.Model(t, synth.Config{Layers: 4, Embd: 512, FF: 1536, Heads: 8, KVHeads: 4,
		Type: gguf.Q8_0, Seed: 3})
	program := filepath.Join(t.TempDir(), "host")
	compile(t, program, `#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static char sum;
static void scan(volatile char *p, long n, long ms) {
	for (long end = now() + ms; now() < end; usleep(1000))
		for (long k = 0; k < n; k += 4096) sum += p[k];
	usleep(60000); /* a pass has begun by now, and waits */
}
static long get(int how, FILE *f, char *to, long n, long at) {
	if (how == 0) return fread(to, 1, n, f);
	return how == 1 ? read(fileno(f), to, n) : pread(fileno(f), to, n, at);
}
/* Reads n bytes of a file to memory; false if they cannot all be read. */
static int fill(int how, const char *path, char *to, long n) {
	FILE *f = fopen(path, "r");
	long got = 0, k;
	while (f && got < n && (k = get(how, f, to + got, n - got, got)) > 0) got += k;
	if (f) fclose(f);
	return got == n;
}
int main(int argc, char **argv) {
	struct stat st;
	if (stat(argv[1], &st)) return 1;
	long n = st.st_size, page = 4096, wrong = 0;
	char *a = malloc(n), *b = malloc(n);
	if (argc > 4) { /* as for weights that are repacked */
		if (!fill(0, argv[1], a, n)) return 10;
		free(a);
		usleep(600000);
		write(1, "done\n", 5);
		return 0;
	}
	if (!fill(argc - 2, argv[1], a, n)) return 2;
	scan(a, n, 400);
	if (!fill(argc - 2, argv[1], a, n)) return 3; /* what a pass has taken away */
	scan(a, n, 400);
	pid_t child = fork();
	if (!child) _exit(fill(argc - 2, argv[1], a, n) ? 0 : 4);
	int status;
	if (waitpid(child, &status, 0) != child || status) return 5;
	if (!fill(argc - 2, argv[1], b, n) || memcmp(a, b, n)) return 6;
	scan(a, n, 100);
	/* A part of what is watched becomes something else's. */
	char *there = (char *)(((long)a + page) & -page), *last = (char *)(((long)a + n - 8 * page) & -page);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	if ((char *)syscall(SYS_mmap, last, page, PROT_READ, flags, -1, 0) != last) return 7;
	scan(there, last - there, 600);
	int p[2];
	if (pipe(p) || write(p[1], "x", 1) != 1 || read(p[0], last, 1) != -1) return 8; /* it cannot be written to */
	if (syscall(SYS_munmap, a - 16, n + 16 + page - 1 & -page)) return 9;
	usleep(300000);
	write(1, "done\n", 5);
	return 0;
}
`, "-w")
	for _, how := range [][]string{{}, {"read"}, {"read", "at"}, {"read", "at", "gone"}} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			t.Parallel() // the program sleeps most of the time
			cmd := exec.CommandContext(t.Context(), program, append([]string{model}, how...)...)
			cmd.Env = append(os.Environ(), "LD_PRELOAD="+lib, "TFMBS_DETECT=-")
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			line := " matrices were detected in " + model + ", read into memory, in "
			if len(how) > 2 {
				line = " bytes of " + model + " were read into memory that is used for something else by now"
			}
			if err != nil || out.String() != "done\n" || !strings.Contains(errs.String(), line) {
				t.Errorf("error %v, output %q, want done; standard error %q, want %q", err, out.String(), errs.String(),
					line)
			}
		})
	}
}

// sameLines reports whether two texts have the same lines, in any order.
func sameLines(a, b string) bool {
	sorted := func(text string) (all []string) {
		s := bufio.NewScanner(strings.NewReader(text))
		for s.Scan() {
			all = append(all, s.Text())
		}
		slices.Sort(all)
		return all
	}
	return fmt.Sprint(sorted(a)) == fmt.Sprint(sorted(b))
}
