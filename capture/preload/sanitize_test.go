package preload

// These tests run the shim with the compiler's sanitizers in a real llama.cpp.

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/internal/cc"
)

// The shim reports the same with the address and undefined-behaviour sanitizers, which kill the
// target at the first finding. It compiles without a warning.
func TestSanitizers(t *testing.T) {
	in := install(t)
	dir := openDir(t)
	for _, sanitizer := range []string{"undefined", "address"} {
		t.Run(sanitizer, func(t *testing.T) {
			flags := []string{
				"-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=" + sanitizer,
				"-fno-sanitize-recover=all",
			}
			old := compilerFlags
			compilerFlags = append(slices.Clone(old), flags...)
			t.Cleanup(func() { compilerFlags = old })
			var env []string
			if sanitizer == "address" {
				env = addressSanitizer(t, dir)
			}
			for name, config := range map[string]struct{ threads int }{"dense": {2}, "moe": {1}} {
				c := denseModel
				if name == "moe" {
					c = moeModel
				}
				o := llama.Options{
					Model: model(t, c), Prompt: "the quick brown fox", Tokens: 4,
					Threads: config.threads, NoRepack: true,
					Ops: filepath.Join(openDir(t), "ops.jsonl"),
				}
				cmd := in.Command(t.Context(), o)
				cmd.Env = append(cmd.Environ(), env...)
				r := observe(t, cmd, scene{})
				if !r.state.Success() {
					t.Fatalf("%s: the program ended with %v, want success: %s", name, r.state, r.stderr)
				}
				got := r.reads(t)
				compare(t, got, truth(t, o.Ops, got))
				checkAccounted(t, r)
			}
			odd := oddProgram(t)
			for _, what := range []string{
				"nothing", "closes descriptors", "is cancelled", "forks", "overwrites sizes",
			} {
				cmd := odd(what)
				cmd.Env = append(cmd.Environ(), env...)
				if r := observe(t, cmd, scene{mayFail: true, asRoot: true}); !r.state.Success() {
					t.Errorf("a program that %s: %v: %s", what, r.state, r.stderr)
				}
			}
		})
	}
	t.Run("finds", func(t *testing.T) {
		// A planted error kills a program. Otherwise the checks above would prove nothing.
		for sanitizer, source := range map[string]string{
			"undefined": "int main(int n, char **v) { (void)v; return (n << 31) + 0x7fffffff + n < 0; }",
			"address": "#include <stdlib.h>\nint main(int n, char **v) { char *p = malloc(8); (void)v; p[8 + n] " +
				"= 1; return p[9]; }",
		} {
			program := filepath.Join(t.TempDir(), "planted")
			if err := cc.Compile(t.Context(), program, source, "-fsanitize="+sanitizer,
				"-fno-sanitize-recover=all"); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(program).CombinedOutput(); err == nil ||
				!strings.Contains(string(out), "runtime error") && !strings.Contains(string(out), "AddressSanitizer") {
				t.Errorf("%s: got %v, want a report of the planted error in %q", sanitizer, err, out)
			}
		}
	})
}

// addressSanitizer returns the environment for a program that is not instrumented but loads a
// library that is. It skips the test where the sanitizer does not work at all.
func addressSanitizer(t *testing.T, dir string) []string {
	t.Helper()
	empty := filepath.Join(dir, "empty")
	if err := cc.Compile(t.Context(), empty, "int main(void) { return 0; }", "-fsanitize=address"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(empty).CombinedOutput(); err != nil {
		t.Skipf("-fsanitize=address does not work here: %v: %s", err, out)
	}
	linked, err := exec.Command("ldd", empty).Output()
	if err != nil {
		t.Fatalf("which libraries the sanitizer needs: %v", err)
	}
	for line := range strings.Lines(string(linked)) {
		if name, rest, ok := strings.Cut(line, " => "); ok && strings.Contains(name, "asan") {
			path, _, _ := strings.Cut(rest, " (")
			if _, err := os.Stat(path); err != nil {
				t.Fatal(err)
			}
			// Leaks are not checked, because the program's own would count.
			return []string{"LD_PRELOAD=" + path, "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0"}
		}
	}
	t.Skip("the sanitizer is linked into programs: it cannot be loaded before others")
	return nil
}
