package ggml

// These tests scan compiled variants of testdata/ggml.c: layouts, optimisation levels, debug
// information, stripped files.

import (
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// compile compiles testdata/ggml.c and returns the path of the result.
func compile(t testing.TB, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "libggml.so")
	runCommand(t, "gcc", append(append([]string{"-w", "-o", out}, flags...), filepath.Join("testdata", "ggml.c"))...)
	return out
}

// runCommand runs a command that must succeed and returns its output.
func runCommand(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// compiledLayout is the layout that the compiler gives the structs.
func compiledLayout(t *testing.T, layout string) Layout {
	t.Helper()
	program := compile(t, "-DOFFSETS", "-DLAYOUT="+layout)
	var l Layout
	if err := json.Unmarshal([]byte(runCommand(t, program)), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func mustScan(t *testing.T, path string) *Image {
	t.Helper()
	im, err := Scan(path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

var fixtureSymbols = []string{
	"ggml_backend_buffer_free", "ggml_compute_forward_rms_norm_mul_fused", "ggml_cpu_extra_compute_forward",
	"ggml_graph_compute", "llama_decode", "llama_encode", "llama_set_warmup",
}

func symbolsOf(im *Image) []string {
	var names []string
	for _, s := range im.Sites {
		names = append(names, s.Symbol)
	}
	return names
}

// checkFixture checks what was read from testdata/ggml.c. origin is how the layout's Origin begins.
func checkFixture(t *testing.T, im *Image, want Layout, origin string) {
	t.Helper()
	if !slices.Equal(symbolsOf(im), fixtureSymbols) {
		t.Errorf("sites %q, want %q", symbolsOf(im), fixtureSymbols)
	}
	if im.OpsErr != nil || !slices.Equal(im.Ops, []string{
		"NONE", "ADD", "MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "UNARY",
	}) {
		t.Errorf("ops %q, %v", im.Ops, im.OpsErr)
	}
	if im.GGMLVersion != "0.9.4" || im.GGMLCommit != "0123abc" || im.LlamaBuild != "b6700 (4567def)" {
		t.Errorf("versions %q, %q, %q", im.GGMLVersion, im.GGMLCommit, im.LlamaBuild)
	}
	if im.Layout == nil || !im.Layout.equalOffsets(want) || im.LayoutErr != nil {
		t.Fatalf("layout %v, %v\nwant   %v", im.Layout, im.LayoutErr, want)
	}
	if !strings.HasPrefix(im.Layout.Origin, origin) {
		t.Errorf("the layout comes from %q, want %q", im.Layout.Origin, origin)
	}
}

func TestScanFixtures(t *testing.T) {
	kinds := map[string][]string{
		"shared": {"-shared", "-fPIC"},
		"PIE":    {"-DPROGRAM", "-fPIE", "-pie"},
		"no PIE": {"-DPROGRAM", "-fno-pie", "-no-pie"},
		"static": {"-DPROGRAM", "-static"},
	}
	for _, layout := range []string{"NOW", "GRAD", "IK", "PERF", "OTHER"} {
		want := compiledLayout(t, layout)
		for kind, flags := range kinds {
			for _, opt := range []string{"-O0", "-O2", "-O2 -mavx", "-O3 -mavx2", "-Os", "-Og"} {
				for _, debug := range []string{"", "-g", "-gdwarf-4"} {
					plain := opt == "-O2" && debug == ""
					if !plain && (kind != "shared" && (layout != "NOW" || opt != "-O0" && debug != "-g") ||
						debug != "" && opt != "-O2") {
						continue
					}
					t.Run(strings.Join([]string{layout, kind, opt, debug}, " "), func(t *testing.T) {
						t.Parallel()
						all := slices.Concat([]string{"-DLAYOUT=" + layout}, strings.Fields(opt), flags)
						if debug != "" {
							all = append(all, debug)
						}
						im := mustScan(t, compile(t, all...))
						origin := "code of "
						if debug != "" {
							origin = "DWARF of "
							if im.code == nil || !im.code.equalOffsets(want) {
								t.Errorf("the layout from the code is %v, want %v", im.code, want)
							}
						}
						checkFixture(t, im, want, origin)
						if im.Stripped || im.Dynamic == (kind == "static") {
							t.Errorf("stripped %v, dynamic %v", im.Stripped, im.Dynamic)
						}
					})
				}
			}
		}
	}
}

// The table of known layouts agrees with what the compiler makes of these structs.
func TestCandidates(t *testing.T) {
	for i, layout := range []string{"NOW", "GRAD", "IK", "PERF"} {
		if want := compiledLayout(t, layout); !Candidates()[i].equalOffsets(want) {
			t.Errorf("%s: %v, want %v", layout, Candidates()[i], want)
		}
	}
}

// Stripped files are read as far as possible, with the debug information that a distribution keeps
// in separate files.
func TestStripped(t *testing.T) {
	want := compiledLayout(t, "OTHER")
	program := func(t *testing.T, extra ...string) string {
		return compile(t, append([]string{"-DLAYOUT=OTHER", "-DPROGRAM", "-static", "-O2", "-g"}, extra...)...)
	}
	t.Run("program", func(t *testing.T) {
		path := program(t)
		runCommand(t, "strip", path)
		im := mustScan(t, path)
		if len(im.Sites) != 0 || im.Layout != nil || im.Ops != nil || !im.Stripped || im.Dynamic {
			t.Errorf("a stripped static program gives %+v, want nothing", im)
		}
	})
	t.Run("library", func(t *testing.T) { // .dynsym stays
		path := compile(t, "-DLAYOUT=OTHER", "-shared", "-fPIC", "-O2", "-g")
		runCommand(t, "strip", path)
		im := mustScan(t, path)
		checkFixture(t, im, want, "code of ")
		if !im.Stripped || !im.Dynamic {
			t.Errorf("stripped %v, dynamic %v", im.Stripped, im.Dynamic)
		}
	})
	t.Run("debug link", func(t *testing.T) {
		path := program(t)
		apart := path + ".debug"
		runCommand(t, "objcopy", "--only-keep-debug", path, apart)
		runCommand(t, "strip", path)
		runCommand(t, "objcopy", "--add-gnu-debuglink="+apart, path)
		checkFixture(t, mustScan(t, path), want, "DWARF of "+apart)

		// Now the functions are not in the table of symbols, only in DWARF. The variables that hold
		// the build are in neither.
		runCommand(t, "objcopy", "--strip-all", "--keep-section=.debug_*", apart)
		runCommand(t, "objcopy", "--remove-section=.gnu_debuglink", path)
		runCommand(t, "objcopy", "--add-gnu-debuglink="+apart, path)
		im := mustScan(t, path)
		if im.LlamaBuild != "" {
			t.Errorf("build %q, want none", im.LlamaBuild)
		}
		im.LlamaBuild = "b6700 (4567def)"
		checkFixture(t, im, want, "DWARF of "+apart)

		// A user who may write beside a library of root's must not decide where probes are set in it.
		if os.Getuid() == 0 {
			for _, owner := range []struct {
				library, debug int
				taken          bool
			}{{0, 65534, false}, {65534, 65534, true}, {65534, 0, true}, {65534, 65533, false}, {0, 0, true}} {
				if err := errors.Join(os.Chown(path, owner.library, -1), os.Chown(apart, owner.debug, -1)); err != nil {
					t.Fatal(err)
				}
				if im := mustScan(t, path); (len(im.Sites) > 0) != owner.taken {
					t.Errorf("a debug file of user %d beside a library of user %d: %q, taken should be %v",
						owner.debug, owner.library, symbolsOf(im), owner.taken)
				}
			}
		}

		// The debug file of another build would put probes at wrong offsets.
		f, err := os.OpenFile(apart, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("x"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if im := mustScan(t, path); len(im.Sites) != 0 {
			t.Errorf("took a debug file whose checksum differs: %q", symbolsOf(im))
		}
	})
	t.Run("build id", func(t *testing.T) {
		path := program(t, "-Wl,--build-id")
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		id := hex.EncodeToString(buildID(f))
		f.Close()
		dir := t.TempDir()
		apart := filepath.Join(dir, ".build-id", id[:2], id[2:]+".debug")
		if err := os.MkdirAll(filepath.Dir(apart), 0o755); err != nil {
			t.Fatal(err)
		}
		runCommand(t, "objcopy", "--only-keep-debug", path, apart)
		runCommand(t, "strip", path)
		r, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		im, err := scan(r, path, dir, uint32(os.Getuid()))
		if err != nil {
			t.Fatal(err)
		}
		checkFixture(t, im, want, "DWARF of "+apart)
	})
	for name, flag := range map[string]string{
		"compressed": "-gz=zlib", "split": "-gsplit-dwarf", "type units": "-fdebug-types-section",
	} {
		t.Run(name, func(t *testing.T) { // the debug information is read, or passed over and the code read instead
			t.Chdir(t.TempDir()) // split debug information goes to the working directory
			source := filepath.Join(t.TempDir(), "ggml.c")
			if err := os.WriteFile(source, fixture, 0o644); err != nil {
				t.Fatal(err)
			}
			runCommand(t, "gcc", "-w", "-DLAYOUT=OTHER", "-shared", "-fPIC", "-O2", "-g", flag, "-o", "libggml.so",
				source)
			path, err := filepath.Abs("libggml.so")
			if err != nil {
				t.Fatal(err)
			}
			origin := "DWARF of "
			if name != "compressed" {
				origin = "code of "
			}
			checkFixture(t, mustScan(t, path), want, origin)
		})
	}
}

// Packed relocations leave the addresses in the file.
func TestPackedRelocations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libggml.so")
	out, err := exec.Command("gcc", "-w", "-DLAYOUT=NOW", "-shared", "-fPIC", "-O2", "-Wl,-z,pack-relative-relocs",
		"-o", path, "testdata/ggml.c").CombinedOutput()
	if err != nil || strings.Contains(string(out), "ignored") {
		t.Skipf("this linker does not pack relocations: %v %s", err, out)
	}
	checkFixture(t, mustScan(t, path), Candidates()[0], "code of ")
}

// A program that loads llama.cpp at run time may keep pointers under the names of its functions.
func TestPointersOfTheSameName(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "host.c")
	code := "int (*llama_decode)(void *), (*ggml_graph_compute)(void *) = (void *)1;\n" +
		"const char *(*ggml_op_name)(int);\n" +
		"int main(void) { return !llama_decode; }\n"
	if err := os.WriteFile(source, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	runCommand(t, "gcc", "-rdynamic", "-o", filepath.Join(dir, "host"), source)
	if im := mustScan(t, filepath.Join(dir, "host")); len(im.Sites) != 0 || im.OpsErr != nil {
		t.Errorf("sites %q, ops %v, want neither", symbolsOf(im), im.OpsErr)
	}
}

func TestInfer(t *testing.T) {
	now := mustScan(t, compile(t, "-DLAYOUT=NOW", "-shared", "-fPIC", "-O2"))
	grad := mustScan(t, compile(t, "-DLAYOUT=GRAD", "-shared", "-fPIC", "-O2"))
	other := mustScan(t, compile(t, "-DLAYOUT=OTHER", "-shared", "-fPIC", "-O2", "-g"))
	plain := mustScan(t, "/bin/true")
	for name, tc := range map[string]struct {
		images []*Image
		want   Layout
		origin string
	}{
		"nothing": {nil, Candidates()[0], "table: "},
		"no ggml": {[]*Image{plain}, Candidates()[0], "table: "},
		"code":    {[]*Image{plain, grad}, Candidates()[1], "code of "},
		"twice":   {[]*Image{grad, grad}, Candidates()[1], "code of "},
		"DWARF":   {[]*Image{now, other}, *other.Layout, "DWARF of "},
	} {
		l, err := Infer(tc.images)
		if err != nil || !l.equalOffsets(tc.want) || !strings.HasPrefix(l.Origin, tc.origin) {
			t.Errorf("%s: %v, %v, want %v from %q", name, l, err, tc.want, tc.origin)
		}
	}
	if l, err := Infer([]*Image{now, grad}); !errors.Is(err, ErrTwoLayouts) {
		t.Errorf("two layouts: %v, %v", l, err)
	}
	lying := mustScan(t, compile(t, "-DLAYOUT=NOW", "-DLYING", "-shared", "-fPIC", "-O2"))
	if lying.Layout != nil || !errors.Is(lying.LayoutErr, errContradiction) {
		t.Errorf("accessors that contradict each other: %v, %v", lying.Layout, lying.LayoutErr)
	}
}
