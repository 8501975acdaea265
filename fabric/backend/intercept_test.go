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

// intercepted runs llama.cpp with libtfmbs_intercept.so, built with flags, before all libraries; preload, if not empty, comes before that.
func intercepted(t *testing.T, in *llama.Installation, o llama.Options, preload, lib string, environ ...string) (tokens []int32, stderr string) {
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

// interposer builds libtfmbs_intercept.so.
func interposer(t *testing.T, flags ...string) string {
	t.Helper()
	return build(t, backendtest.Intercept, flags...)
}

// A llama.cpp that has no backend has its products computed by the device, with any number of threads, and each is the CPU's; so is the text.
func TestIntercept(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := interposer(t)
	for name, model := range models(t) {
		t.Run(name, func(t *testing.T) {
			want := generate(t, in, model, 64)
			for threads := 1; threads <= 2; threads++ {
				d, _ := start(t)
				o := llama.Options{Model: model, Prompt: prompt, Tokens: 64, Threads: threads, NoRepack: true}
				got, said := intercepted(t, in, o, "", lib, "TFMBS_VALIDATE=1")
				s := d.Status()
				var count, wrong int
				if _, err := fmt.Sscanf(said, "tfmbs: %d results were compared with the CPU's, %d of them wrong", &count, &wrong); err != nil || wrong != 0 || count == 0 || uint64(count) > s.Products {
					t.Errorf("%q: %v", said, err)
				}
				if s.Products < 64*3*7 || s.Failed != 0 || s.Misses != 0 || !slices.Equal(got, want) {
					t.Errorf("%d threads: the first %d of %d tokens are the CPU's; the device: %+v", threads, common(got, want), len(want), s)
				}
			}
		})
	}
}

// With profile accurate, each result is the CPU's, bit for bit, of single tokens and of a prompt, with several threads (and with one: TestAccurate).
func TestInterceptAccurate(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := interposer(t)
	for _, name := range accurateModels {
		t.Run(name, func(t *testing.T) {
			d, _ := start(t)
			o := llama.Options{Model: llamatest.Trained(t, name), Prompt: prompt, Tokens: 32, Threads: 2, NoRepack: true}
			want, _ := intercepted(t, in, o, "", "")
			got, said := intercepted(t, in, o, "", lib, "TFMBS_PROFILE=accurate", "TFMBS_VALIDATE=1")
			var count, wrong int
			var worst float64
			if _, err := fmt.Sscanf(said, "tfmbs: %d results were compared with the CPU's, %d of them wrong; the largest error of the others is %g %%", &count, &wrong, &worst); err != nil || wrong != 0 || worst != 0 || count < 32*6*7 {
				t.Errorf("%q: %v", said, err)
			}
			if s := d.Status(); s.Failed != 0 || uint64(count) > s.Products || !slices.Equal(got, want) {
				t.Errorf("the first %d of %d tokens are the CPU's; the device: %+v", common(got, want), len(want), s)
			}
		})
	}
}

// An error of the device is found, said once, and not used.
func TestValidate(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, small)
	want := generate(t, in, model, 20)
	flags := []string{`-DTFMBS_PLANT="blk.1.ffn_up.weight"`, "-DTFMBS_PLANTED=100"}
	for name, lib := range map[string]string{"interposer": interposer(t, flags...), "backend": library(t, flags...)} {
		t.Run(name, func(t *testing.T) {
			d, _ := start(t)
			o := llama.Options{Model: model, Prompt: prompt, Tokens: 20, Threads: 1, NoRepack: true}
			run := func(environ ...string) ([]int32, string) {
				if name == "backend" {
					return intercepted(t, in, o, "", "", append(environ, "GGML_BACKEND_PATH="+lib)...)
				}
				return intercepted(t, in, o, "", lib, environ...)
			}
			if got, said := run(); slices.Equal(got, want) || said != "" {
				t.Errorf("the planted error changes nothing: %q", said)
			}
			got, said := run("TFMBS_VALIDATE=1")
			if strings.Count(said, "WRONG") != 1 || !strings.Contains(said, "WRONG: blk.1.ffn_up.weight: ") || strings.Contains(said, ", 0 of them wrong") {
				t.Errorf("%q", said)
			}
			if s := d.Status(); s.Products == 0 || !slices.Equal(got, want) {
				t.Errorf("the first %d of %d tokens are the CPU's; the device: %+v", common(got, want), len(want), s)
			}
		})
	}
}

// A process that llama.cpp's has forked does not use its parent's device: it computes itself, the same.
func TestInterceptFork(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := interposer(t)
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
	want := generate(t, in, model, 20)
	d, _ := start(t)
	got, said := intercepted(t, in, llama.Options{Model: model, Prompt: prompt, Tokens: 20, Threads: 1, NoRepack: true}, forker, lib)
	if s := d.Status(); said != "forked: the same\n" || s.Products == 0 || s.Failed != 0 || !slices.Equal(got, want) {
		t.Errorf("%q; the first %d of %d tokens are the CPU's; the device: %+v", said, common(got, want), len(want), s)
	}
}

// Without a device, and in programs that have nothing of ggml, it does nothing but, if it is asked at all, say so in a line.
func TestInterceptStepsAside(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := interposer(t)
	model := llamatest.Model(t, small)
	want := generate(t, in, model, 10)
	o := llama.Options{Model: model, Prompt: prompt, Tokens: 10, Threads: 1, NoRepack: true}
	t.Setenv("TFMBS_SOCKET", filepath.Join(t.TempDir(), "none"))
	t.Setenv("TFMBS_DEVICE", "/nowhere")
	for environ, line := range map[string]string{"TFMBS_PROFILE=": "there is no device", "TFMBS_PROFILE=nonsense": "not used: TFMBS_PROFILE=nonsense"} {
		if got, said := intercepted(t, in, o, "", lib, environ); !slices.Equal(got, want) || strings.Count(said, "\n") != 1 || !strings.Contains(said, line) {
			t.Errorf("%s: %q", environ, said)
		}
	}
	sh := exec.CommandContext(t.Context(), "sh", "-c", "/bin/sh -c true & wait; echo done") // forks and execs
	sh.Env = append(os.Environ(), "LD_PRELOAD="+lib)
	if out, err := sh.CombinedOutput(); err != nil || string(out) != "done\n" {
		t.Errorf("%v: %q", err, out)
	}
}
