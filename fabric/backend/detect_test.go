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

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// region is a part of a file, in bytes.
type region struct{ from, size int64 }

// like says whether both are the same but for a fifth: what they have in common is four fifths of what they cover.
func (r region) like(o region) bool {
	both := min(r.from+r.size, o.from+o.size) - max(r.from, o.from)
	return both > 0 && float64(both) >= 0.8*float64(r.size+o.size-both)
}

// matrices are those of a model that products read, of experts each: what there is to detect.
func matrices(t *testing.T, model string) (all []region) {
	t.Helper()
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors {
		w := &f.Tensors[i]
		switch n := int64(w.Experts()); {
		case w.Name == "token_embd.weight" || len(w.Shape) < 2:
		case n > 0 && len(w.Shape) == 3:
			for e := range n {
				all = append(all, region{w.Offset + e*w.ExpertStride(), w.ExpertStride()})
			}
		case w.Size >= 8*4096:
			all = append(all, region{w.Offset, w.Size})
		}
	}
	return all
}

// detected reads what TFMBS_DETECT wrote.
func detected(t *testing.T, path string) (all []region) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 1 || !slices.Equal(rows[0], []string{"file", "offset_bytes", "size_bytes", "confidence", "passes"}) {
		t.Fatalf("%v, %v", rows, err)
	}
	for _, row := range rows[1:] {
		from, err := strconv.ParseInt(row[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		size, err := strconv.ParseInt(row[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, region{from, size})
	}
	return all
}

// TestDetect: matrices are found by the order in which their pages are read, while the program says the same as ever. How exactly depends on time, and is logged; what is read in all does not.
// TFMBS_DETECT_MODEL=model.gguf, TFMBS_DETECT_TOKENS=400: another model.
func TestDetect(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := interposer(t)
	models := map[string]string{
		"dense":   llamatest.Model(t, synth.Config{Layers: 4, Embd: 512, FF: 1536, Heads: 8, KVHeads: 4, Type: gguf.Q8_0, Seed: 3}),
		"mixture": llamatest.Model(t, synth.Config{Layers: 3, Embd: 512, FF: 512, Heads: 8, KVHeads: 4, Experts: 8, Used: 2, Type: gguf.Q8_0, Seed: 3}),
	}
	tokens := 1200
	if path := os.Getenv("TFMBS_DETECT_MODEL"); path != "" {
		models = map[string]string{filepath.Base(path): path}
		if n, err := strconv.Atoi(os.Getenv("TFMBS_DETECT_TOKENS")); err == nil {
			tokens = n
		}
	}
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TFMBS_SOCKET", filepath.Join(t.TempDir(), "none"))
			t.Setenv("TFMBS_DEVICE", "/nowhere")
			to := filepath.Join(t.TempDir(), "found.csv")
			want := generate(t, in, model, tokens)
			got, said := intercepted(t, in, llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true}, "", lib, "TFMBS_DETECT="+to)
			if !slices.Equal(got, want) || !strings.Contains(said, "matrices were detected in "+model) {
				t.Errorf("the first %d of %d tokens are the CPU's; %q", common(got, want), len(want), said)
			}
			truth, found := matrices(t, model), detected(t, to)
			among := func(r region, all []region) bool { return slices.ContainsFunc(all, r.like) }
			var right, seen int
			var bytes, all int64
			for _, r := range found {
				bytes += r.size
				if among(r, truth) {
					right++
				}
			}
			for _, r := range truth {
				all += r.size
				if among(r, found) {
					seen++
				}
			}
			recall, precision, part := float64(seen)/float64(len(truth)), float64(right)/float64(max(len(found), 1)), float64(bytes)/float64(all)
			t.Logf("%d matrices, %d detected: recall %.3f, precision %.3f, %.3f of the bytes", len(truth), len(found), recall, precision, part)
			if recall < 0.1 || precision < 0.1 || part < 0.95 || part > 1.05 {
				t.Errorf("recall %.3f, precision %.3f, %.3f of the bytes", recall, precision, part)
			}
		})
	}
}

// TestAgree: passes with planted touches. Threads are interrupted somewhere else each time, one of two comes late, a pause follows each matrix and others come by chance.
func TestAgree(t *testing.T) {
	header, err := filepath.Abs("tfmbs_detect.h")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "agree")
	compile(t, program, "#define _GNU_SOURCE\n#include \""+header+`"
static struct touch touches[1 << 16];
static size_t n;
static int64_t now;
static void touch(uint32_t unit, uint32_t thread, int64_t took) { touches[n++] = (struct touch){unit, thread, now += took}; }
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
		vote(&v, scans, join_scans(scans, k), pauses);
	}
	size_t k = agree(&v, g, 1000);
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

// Memory that cannot be watched any more, as the program unmaps it or has a handler of its own, and programs that have no model, are left alone.
func TestDetectStepsAside(t *testing.T) {
	lib := interposer(t)
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
		if err != nil || !lines(out.String(), want) {
			t.Errorf("%v: %v: %q, %q", args, err, out.String(), errs.String())
		}
	}
}

// lines says whether both have the same lines, in any order.
func lines(a, b string) bool {
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
