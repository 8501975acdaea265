package backend_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/fabric/backend/backendtest"
)

// runIntercepted runs llama.cpp with the interposer lib before all libraries, and with preload, if that is not
// empty, before that.
func runIntercepted(t *testing.T, in *llama.Installation, o llama.Options, preload, lib string,
	environ ...string) (tokens []int32, stderr string) {
	t.Helper()
	cmd := in.Command(t.Context(), o)
	cmd.Env = append(os.Environ(), append(environ, "LD_PRELOAD="+strings.TrimSpace(preload+" "+lib))...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.Bytes())
	}
	r, err := llama.ParseResult(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return r.Tokens, errs.String()
}

// buildInterposer builds libtfmbs_intercept.so.
func buildInterposer(t *testing.T, flags ...string) string {
	t.Helper()
	return buildLibrary(t, backendtest.Intercept, flags...)
}

// TestIntercept: the device computes the products of a llama.cpp that has no backend, with any number of
// threads. Each product is the CPU's, and so is the text.
func TestIntercept(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildInterposer(t)
	for name, model := range models(t) {
		t.Run(name, func(t *testing.T) {
			want := cpuTokens(t, in, model, 64)
			for threads := 1; threads <= 2; threads++ {
				d, _ := startDevice(t)
				o := llama.Options{Model: model, Prompt: prompt, Tokens: 64, Threads: threads, NoRepack: true}
				got, said := runIntercepted(t, in, o, "", lib, "TFMBS_VALIDATE=1")
				s := d.Status()
				var count, wrong int
				if _, err := fmt.Sscanf(said,
					"tfmbs: %d results were compared with the CPU's, %d of them wrong", &count,
					&wrong); err != nil || wrong != 0 || count == 0 || uint64(count) > s.Products {
					t.Errorf("standard error: %q, %v; want results that were compared, none of them wrong", said, err)
				}
				if s.Products < 64*3*7 || s.Failed != 0 || s.Misses != 0 || !slices.Equal(got, want) {
					t.Errorf("%d threads: the first %d tokens are the CPU's, want all %d; the device: %+v",
						threads, commonPrefix(got, want), len(want), s)
				}
			}
		})
	}
}

// TestInterceptAccurate: with the profile accurate, each result is the CPU's, bit for bit, of single tokens and
// of a prompt, with several threads (with one: TestAccurate).
func TestInterceptAccurate(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildInterposer(t)
	for _, name := range accurateModels {
		t.Run(name, func(t *testing.T) {
			d, _ := startDevice(t)
			o := llama.Options{Model: llamatest.Trained(t, name), Prompt: prompt, Tokens: 32, Threads: 2,
				NoRepack: true}
			want, _ := runIntercepted(t, in, o, "", "")
			got, said := runIntercepted(t, in, o, "", lib, "TFMBS_PROFILE=accurate", "TFMBS_VALIDATE=1")
			var count, wrong int
			var worst float64
			_, err := fmt.Sscanf(said, "tfmbs: %d results were compared with the CPU's, %d of them wrong; "+
				"the largest error of the others is %g %%", &count, &wrong, &worst)
			if err != nil || wrong != 0 || worst != 0 || count < 32*6*7 {
				t.Errorf("standard error: %q, %v; want results that were compared, without any error", said, err)
			}
			if s := d.Status(); s.Failed != 0 || uint64(count) > s.Products || !slices.Equal(got, want) {
				t.Errorf("the first %d tokens are the CPU's, want all %d; the device: %+v",
					commonPrefix(got, want), len(want), s)
			}
		})
	}
}

// TestValidate: an error of the device is found, said once, and not used.
func TestValidate(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, small)
	want := cpuTokens(t, in, model, 20)
	flags := []string{`-DTFMBS_PLANT="blk.1.ffn_up.weight"`, "-DTFMBS_PLANTED=100"}
	for name, lib := range map[string]string{"interposer": buildInterposer(t, flags...),
		"backend": buildBackend(t, flags...)} {
		t.Run(name, func(t *testing.T) {
			d, _ := startDevice(t)
			o := llama.Options{Model: model, Prompt: prompt, Tokens: 20, Threads: 1, NoRepack: true}
			run := func(environ ...string) ([]int32, string) {
				if name == "backend" {
					return runIntercepted(t, in, o, "", "", append(environ, "GGML_BACKEND_PATH="+lib)...)
				}
				return runIntercepted(t, in, o, "", lib, environ...)
			}
			if got, said := run(); slices.Equal(got, want) || said != "" {
				t.Errorf("without validation: standard error %q, or the same text; want none, and another text", said)
			}
			got, said := run("TFMBS_VALIDATE=1")
			if strings.Count(said, "WRONG") != 1 || !strings.Contains(said, "WRONG: blk.1.ffn_up.weight: ") ||
				strings.Contains(said, ", 0 of them wrong") {
				t.Errorf("standard error: %q, want one line about blk.1.ffn_up.weight", said)
			}
			if s := d.Status(); s.Products == 0 || !slices.Equal(got, want) {
				t.Errorf("the first %d tokens are the CPU's, want all %d; the device: %+v",
					commonPrefix(got, want), len(want), s)
			}
		})
	}
}

// TestInterceptFork: a child of llama.cpp's process does not use its parent's device. It computes itself, with
// the same result.
func TestInterceptFork(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildInterposer(t)
	forker := filepath.Join(t.TempDir(), "forker.so")
	compile(t, forker, `#define _GNU_SOURCE
#include "tfmbs_ggml.h"
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static uint64_t sum(void *graph) {
	struct tensor *t = api.ggml_graph_node(graph, -1);
	uint64_t h = 0;
	for (size_t i = 0; i < api.ggml_nbytes(t); i++) h = (h ^ (uint8_t)t->data[i]) * 0x100000001b3u;
	return h;
}
__attribute__((visibility("default"))) int ggml_graph_compute(void *graph, void *plan) {
	static int calls;
	int (*next)(void *, void *) = (int (*)(void *, void *))dlsym(RTLD_NEXT, "ggml_graph_compute");
	int e, p[2];
	uint64_t theirs = 1;
	if (++calls != 12 || resolve_ggml() || pipe(p)) return next(graph, plan);
	pid_t child = fork();
	if (!child) {
		theirs = next(graph, plan) ? 1 : sum(graph);
		_exit(write(p[1], &theirs, sizeof theirs) != sizeof theirs);
	}
	e = read(p[0], &theirs, sizeof theirs) != sizeof theirs;
	waitpid(child, NULL, 0);
	e |= next(graph, plan);
	fprintf(stderr, "forked: %s\n", !e && sum(graph) == theirs ? "the same" : "another");
	return e;
}
`, "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-I.", "-x", "c", "tfmbs_ggml.c")
	model := llamatest.Model(t, small)
	want := cpuTokens(t, in, model, 20)
	d, _ := startDevice(t)
	got, said := runIntercepted(t, in, llama.Options{Model: model, Prompt: prompt, Tokens: 20, Threads: 1,
		NoRepack: true}, forker, lib)
	if s := d.Status(); said != "forked: the same\n" || s.Products == 0 || s.Failed != 0 || !slices.Equal(got, want) {
		t.Errorf("standard error %q; the first %d tokens are the CPU's, want all %d; the device: %+v", said,
			commonPrefix(got, want), len(want), s)
	}
}

// TestInterceptStepsAside: without a device, the interposer says so in one line and leaves all to ggml. In
// programs that have nothing of ggml it does nothing.
func TestInterceptStepsAside(t *testing.T) {
	t.Parallel()
	in := llamatest.ForTest(t)
	lib := buildInterposer(t)
	model := llamatest.Model(t, small)
	want := cpuTokens(t, in, model, 10)
	o := llama.Options{Model: model, Prompt: prompt, Tokens: 10, Threads: 1, NoRepack: true}
	socket := "TFMBS_SOCKET=" + filepath.Join(t.TempDir(), "none")
	for environ, line := range map[string]string{"TFMBS_PROFILE=": "there is no device",
		"TFMBS_PROFILE=nonsense": "not used: TFMBS_PROFILE=nonsense"} {
		if got, said := runIntercepted(t, in, o, "", lib, socket, "TFMBS_DEVICE=/nowhere", environ); !slices.Equal(got,
			want) || strings.Count(said, "\n") != 1 || !strings.Contains(said, line) {
			t.Errorf("%s: standard error %q, or another text; want one line with %q", environ, said, line)
		}
	}
	sh := exec.CommandContext(t.Context(), "sh", "-c", "/bin/sh -c true & wait; echo done") // forks and execs
	sh.Env = append(os.Environ(), "LD_PRELOAD="+lib)
	if out, err := sh.CombinedOutput(); err != nil || string(out) != "done\n" {
		t.Errorf("a shell: error %v, output %q; want done", err, out)
	}
}
