package latency

// This file measures a target and a helper whose times are known: a C program that plays both.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cc"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// plantedSource calls the function that every op calls, for a router's choice, and has a child read
// a page of a file after a delay. For each choice it prints the delay and an upper bound of what is
// to be measured: the time from before the op until the child has the page.
const plantedSource = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>

/* As ggml has them since November 2024. */
struct ggml_tensor {
	int type;
	int pad;
	char before[144];
	struct ggml_tensor *src[10];
	char between[24];
	char name[64];
	char padding[32];
};
struct params { int ith, nth; };

__attribute__((noinline, noclone)) int ggml_cpu_extra_compute_forward(struct params *p, struct ggml_tensor *t)
{
	asm volatile("" :: "r"(p), "r"(t) : "rbx", "memory");
	return 0;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static char buf[4096] __attribute__((aligned(4096)));
static int file;

static void read_at(int i)
{
	if (pread(file, buf, sizeof(buf), (off_t)i * 1048576) != sizeof(buf))
		exit(3);
}

int main(int argc, char **argv)
{
	int go[2], back[2], n = atoi(argv[2]);
	long delay = atol(argv[3]);
	file = open(argv[1], O_RDONLY | O_DIRECT);
	if (argc < 4 || file < 0 || pipe(go) || pipe(back))
		return 2;
	int child = fork();
	if (!child) {
		char c;
		close(go[1]);
		for (int i = 0; read(go[0], &c, 1) == 1; i++) {
			if (c == 'r') {
				for (int64_t until = now() + delay * 1000; now() < until; )
					;
				read_at(i);
			}
			if (write(back[1], &c, 1) != 1)
				return 1;
		}
		return 0;
	}
	printf("%d\n", child);
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	struct ggml_tensor choice = { .name = "ffn_moe_topk-3" }, other = { .name = "ffn_norm-3" };
	struct ggml_tensor looks = { .src = { &other, &choice }, .name = "ffn_moe_weights-3" };
	struct ggml_tensor gate = { .src = { &other, &other, &choice }, .name = "ffn_moe_gate-3" };
	struct ggml_tensor norm = { .src = { &other, &other }, .name = "norm" };
	struct params first = { 0, 2 }, second = { 1, 2 };
	for (int i = 0; i < n; i++) {
		/* Of three choices one has nothing missing, and for one the target reads first. */
		char c = i % 3 == 2 ? 'n' : 'r';
		ggml_cpu_extra_compute_forward(&first, &norm);
		int64_t begun = now();
		ggml_cpu_extra_compute_forward(&first, &looks);
		if (i % 3 == 1)
			read_at(1000 + i);
		if (write(go[1], &c, 1) != 1)
			return 1;
		ggml_cpu_extra_compute_forward(&second, &looks);
		ggml_cpu_extra_compute_forward(&first, &gate); /* the same choice */
		if (read(back[0], &c, 1) != 1)
			return 1;
		if (c == 'r')
			printf("%ld\n", (long)(now() - begun));
	}
	printf("end\n");
	fflush(stdout);
	getchar();
	close(go[1]);
	wait(NULL);
	return 0;
}
`

func TestPlanted(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	program, data := filepath.Join(dir, "planted"), filepath.Join(dir, "model")
	if err := cc.Compile(t.Context(), program, plantedSource, "-fno-omit-frame-pointer"); errors.Is(err,
		cc.ErrNoCompiler) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(data)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const choices, delay = 60, 3 * time.Millisecond
	if err := f.Truncate((1000 + choices + 1) << 20); err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 4096)
	for i := range int64(choices) { // no holes, because they are not read from the disk
		for _, at := range []int64{i, 1000 + i} {
			if _, err := f.WriteAt(page, at<<20); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	model, err := confine.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if err := model.OnDisk(); err != nil {
		t.Skipf("%v: set TMPDIR to a directory on a disk", err)
	}
	cmd := exec.Command(program, data, fmt.Sprint(choices), fmt.Sprint(delay.Microseconds()))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("it ended: the file system may not have O_DIRECT")
	}
	var helper int
	if _, err := fmt.Sscan(lines.Text(), &helper); err != nil {
		t.Fatal(err)
	}
	images, err := Images(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id, err := proc.FileOf(data)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Attach(cmd.Process.Pid, helper, images, id.Dev)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) {
		t.Skipf("this kernel has no uprobe_multi: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	var bounds []time.Duration
	for lines.Scan() && lines.Text() != "end" {
		var ns int64
		if _, err := fmt.Sscan(lines.Text(), &ns); err != nil {
			t.Fatal(err)
		}
		bounds = append(bounds, time.Duration(ns))
	}
	seen, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	const read = choices / 3 * 2
	if seen.Choices != choices || seen.TargetFirst != choices/3 || len(seen.Times) != read || len(bounds) != read {
		t.Fatalf("%d choices, in %d the target read first, %d times; want %d, %d, %d of %d", seen.Choices,
			seen.TargetFirst, len(seen.Times), choices, choices/3, read, len(bounds))
	}
	for i, w := range seen.Times {
		if w.Queued < delay || w.Issued < w.Queued || w.Issued > bounds[i] {
			t.Errorf("choice %d: queued after %v, issued after %v; planted %v, the page was there after %v", i,
				w.Queued, w.Issued, delay, bounds[i])
		}
	}
	r := &Report{}
	r.add(seen)
	if r.Choices != choices || r.Read != read || r.Queued.N != read || r.Issued.N != read ||
		r.Queued.Median < float64(delay.Microseconds()) || r.Issued.Max < r.Issued.P99 ||
		r.Issued.P99 < r.Issued.Median {
		t.Errorf("report %+v, want all choices, and times in order", r)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// The report shows the distribution of known times.
func TestReport(t *testing.T) {
	s := Seen{Choices: 200, TargetFirst: 3}
	for i := range 101 {
		s.Times = append(s.Times, Times{time.Duration(i) * time.Microsecond, time.Duration(2*i) * time.Microsecond})
	}
	r := &Report{Tokens: 10, TokS: 5, Threads: 2, Limit: 1 << 30}
	r.add(s)
	want := Wait{101, 50, 90, 99, 100}
	if r.Queued != want {
		t.Errorf("queued %+v, want %+v", r.Queued, want)
	}
	// The time of 0 was not seen.
	if w := r.Issued; w.N != 100 || math.Abs(w.Median-101) > 1e-9 || w.Max != 200 {
		t.Errorf("issued %+v, want 100 values, a median of 101 and a maximum of 200", w)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil ||
		!strings.Contains(text.String(),
			"200 choices in 10 tokens at 5.00 tok/s, 2 threads, limit 1.0 GiB; after 101 the helper read, in 3 "+
				"the target read first") {
		t.Errorf("%v:\n%s", err, text.String())
	}
}

// A run that cannot be made gives the reason.
func TestMeasureRefuses(t *testing.T) {
	for want, c := range map[string]Config{
		"no model":          {},
		"no target command": {Model: "m"},
		"no helper":         {Model: "m", Target: []string{"true"}},
		"a limit":           {Model: "m", Target: []string{"true"}, Helper: "true"},
	} {
		if _, err := Measure(context.Background(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
