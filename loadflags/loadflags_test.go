package loadflags

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
)

// What a program was asked for is read from its words as the program reads them.
func TestRequest(t *testing.T) {
	const (
		now   = loadMode | noRepack
		both  = loadMode | oldFlags | noRepack
		old   = oldFlags | noRepack
		tool  = loadMode | benchUsage | benchMode
		older = oldFlags | benchUsage
		py    = pythonServer
	)
	for name, tc := range map[string]struct {
		of               features
		words, env       string
		unmapped, locked string
		inLayout         bool
	}{
		"nothing":              {now, "-m x.gguf", "HOME=/", "", "", false},
		"none":                 {now, "--load-mode none", "", "--load-mode none", "", false},
		"short":                {now, "-lm dio -m x", "", "-lm dio", "", false},
		"joined":               {now, "--load-mode=none", "", "--load-mode=none", "", false},
		"underscore":           {now, "--load_mode none", "", "--load_mode none", "", false},
		"mlock copies":         {now, "-lm mlock", "", "-lm mlock", "-lm mlock", false},
		"mmap and mlock":       {now, "-lm mmap+mlock", "", "", "-lm mmap+mlock", false},
		"the last mode counts": {now, "-lm none -lm mmap", "", "", "", false},
		"a flag of old is a mode": {
			both, "-lm mmap --mlock", "", "--mlock", "--mlock", false,
		},
		"mode behind a flag of old": {both, "--no-mmap --load-mode mmap", "", "", "", false},
		"old flags add up":          {old, "--no-mmap --mlock", "", "--no-mmap", "--mlock", false},
		"old mlock maps":            {old, "--mlock", "", "", "--mlock", false},
		"direct":                    {old, "--direct-io", "", "--direct-io", "", false},
		"layout":                    {now, "-nr", "", "", "", true},
		"layout by variable":        {now, "", "LLAMA_ARG_NO_REPACK=1", "", "", true},
		"layout by no repack":       {now, "", "LLAMA_ARG_REPACK=off", "", "", true},
		"a flag counts more":        {now, "--repack", "LLAMA_ARG_NO_REPACK=1", "", "", false},
		"mode by variable": {
			now, "", "LLAMA_ARG_LOAD_MODE=none", "LLAMA_ARG_LOAD_MODE=none in its environment", "", false,
		},
		"variable of old": {
			old, "", "LLAMA_ARG_MMAP=0", "LLAMA_ARG_MMAP=0 in its environment", "", false,
		},
		"behind the end of flags":  {now, "-- --load-mode none", "", "", "", false},
		"bench":                    {tool, "-lm none", "", "-lm none", "", false},
		"bench tries some":         {tool, "-lm mmap,none", "", "-lm mmap,none", "", false},
		"bench reads no variable":  {tool, "", "LLAMA_ARG_LOAD_MODE=none", "", "", false},
		"older bench":              {older, "-mmp 0", "", "-mmp 0", "", false},
		"older bench with mapping": {older, "--mmap 1", "", "", "", false},
		"no value":                 {now, "--load-mode", "", "", "", false},
		"python": {
			py, "-m llama_cpp.server --use_mmap False --use_mlock=1", "", "--use_mmap False", "--use_mlock=1", false,
		},
		"python by variable": {
			py, "-m llama_cpp.server --use_mlock false", "USE_MMAP=0 USE_MLOCK=1", "USE_MMAP=0 in its environment", "",
			false,
		},
		"python maps":            {py, "--use_mmap true", "USE_MMAP=false", "", "its default", false},
		"an adapter counts more": {py, "--lora_path x --use_mmap true", "", "--lora_path x", "its default", false},
		"python reads no flag":   {py, "--no-repack -lm none", "LLAMA_ARG_NO_REPACK=1", "", "its default", false},
		"a script":               {pythonLibrary, "--no-mmap", "LLAMA_ARG_MMAP=0", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			command := append([]string{"llama-server"}, strings.Fields(tc.words)...)
			r := parseRequest(tc.of, command, strings.Fields(tc.env))
			if strings.Join(r.Unmapped, " ") != tc.unmapped || strings.Join(r.Locked, " ") != tc.locked ||
				r.InLayout != tc.inLayout {
				t.Errorf("%+v", r)
			}
		})
	}
}

// programs builds programs that hold the texts of real ones: llama-server and llama-bench of now and of old, one that
// holds both, and one that calls libllama by itself.
func programs(t *testing.T) (dir string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc, which builds the programs")
	}
	root := t.TempDir()
	build := func(name string, texts []string, args ...string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		source := path + ".c"
		code := "#include <unistd.h>\n"
		symbol := strings.NewReplacer("-", "_", ".", "_", "/", "_").Replace(name)
		for i, text := range texts {
			code += "const char *const " + symbol + string(rune('a'+i)) + " = \"" + text + "\";\n"
		}
		if strings.HasSuffix(name, ".so") {
			args = append(args, "-shared", "-fPIC")
		} else {
			code += "int main(void) { pause(); return 0; }\n"
		}
		if err := os.WriteFile(source, []byte(code), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"-o", path, source, "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"}, args...)
		cmd := exec.Command("gcc", args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	for dir, texts := range map[string]struct{ common, bench []string }{
		"now": {
			[]string{"LLAMA_ARG_LOAD_MODE", "LLAMA_ARG_REPACK"},
			[]string{"-p, --n-prompt <n>", "--load-mode <none|mmap"},
		},
		"old": {[]string{"LLAMA_ARG_NO_MMAP"}, []string{"-p, --n-prompt <n>"}},
	} {
		at := filepath.Join(root, dir)
		build(dir+"/libllama-common.so", texts.common)
		build(dir+"/libllama-bench-impl.so", texts.bench)
		build(dir+"/libggml-cpu.so", []string{"N4ggml3cpu6repack13tensor_traitsI10block_q4_KLl8ELl8EL9ggml_type15EEE"})
		build(dir+"/llama-server", nil, "-L"+at, "-lllama-common")
		build(dir+"/llama-bench", nil, "-L"+at, "-lllama-common", "-lllama-bench-impl")
		build(dir+"/llama", nil, "-L"+at, "-lllama-common", "-lllama-bench-impl")
	}
	build("host/python", nil)
	build("env/llama_cpp/lib/libllama.so", nil)
	python := filepath.Join(root, "env/llama_cpp/lib")
	build("env/python", nil, "-L"+python, "-lllama", "-Wl,-rpath,"+python)
	return root
}

// waitAsleep waits until a process has been loaded and waits for a signal.
func waitAsleep(t *testing.T, pid int) {
	t.Helper()
	testenv.WaitFor(t, "the program to be loaded", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") S ")
	})
}

// Advice names what the program understands, whether it runs or is to be started.
func TestAdvise(t *testing.T) {
	const (
		withNoRepack = "start llama.cpp with --no-repack"
		withMode     = "start llama.cpp with --load-mode mmap"
		noneForBench = "llama-bench has no flag"
	)
	root := programs(t)
	for name, tc := range map[string]struct {
		command                string
		layout, mapped, unlock string // a part of the advice
	}{
		"new server": {"now/llama-server", withNoRepack, withMode, withMode},
		"new server that was told": {
			"now/llama-server -lm mmap+mlock", withNoRepack, withMode, "start llama.cpp without -lm mmap+mlock",
		},
		"old server": {
			"old/llama-server", "no flag against", "start llama.cpp without --no-mmap",
			"start llama.cpp without --mlock",
		},
		"new bench":           {"now/llama-bench", noneForBench, withMode, withMode},
		"old bench":           {"old/llama-bench", noneForBench, "with --mmap 1", "with --mmap 1"},
		"bench in one":        {"now/llama bench", noneForBench, withMode, withMode},
		"server in one":       {"now/llama server", withNoRepack, withMode, withMode},
		"a host of its own":   {"host/python", "use_extra_bufts false", "without --no-mmap", "without --mlock"},
		"nothing to be found": {"host/none", "use_extra_bufts false", "use_mmap true", "use_mlock false"},
	} {
		t.Run(name, func(t *testing.T) {
			command := strings.Fields(tc.command)
			command[0] = filepath.Join(root, command[0])
			check := func(p Program, running bool) {
				t.Helper()
				for c, want := range map[Change]string{KeepLayout: tc.layout, MapFile: tc.mapped, Unlock: tc.unlock} {
					got := p.Advise(c)
					hasVariable := table[c][p.dialect()].env != "" && !strings.Contains(got, "without -lm") &&
						!strings.Contains(got, "no flag")
					if !strings.Contains(got, want) ||
						strings.Contains(got, "or in its environment: LLAMA_ARG_") != (running && hasVariable) {
						t.Errorf("running %v, change %d: %q, want %q", running, c, got, want)
					}
				}
			}
			check(OfCommand(command, nil), false)
			if name == "nothing to be found" {
				return
			}
			cmd := exec.Command(command[0], command[1:]...)
			cmd.Env = []string{} // not nil, which would be this process's
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			waitAsleep(t, cmd.Process.Pid)
			check(OfProcess(cmd.Process.Pid), true)
		})
	}
}

// Of several changes, those that a program makes already are left out. A variable is not named where it cannot undo a
// flag.
func TestAdviseSeveral(t *testing.T) {
	for name, tc := range map[string]struct {
		of    features
		words string
		want  string
	}{
		"nothing asked": {
			loadMode | noRepack, "", "start llama.cpp with --no-repack (or in its environment: LLAMA_ARG_NO_REPACK=1)",
		},
		"both asked": {
			loadMode | noRepack, "-lm none",
			"start llama.cpp with --no-repack, and without -lm none (or in its environment: LLAMA_ARG_NO_REPACK=1)",
		},
		"layout is kept": {loadMode | noRepack, "-nr -lm none", "start llama.cpp without -lm none"},
		"bench": {
			loadMode | benchUsage | benchMode, "-lm none", "start llama.cpp without -lm none; " + noBenchFlag,
		},
	} {
		p := Program{running: true, features: tc.of}
		p.request = parseRequest(tc.of, append([]string{"x"}, strings.Fields(tc.words)...), nil)
		if got := p.Advise(KeepLayout, MapFile); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	p := Program{request: Request{Unmapped: []string{"--load-mode\x1b[2Jnone"}}}
	if got := p.Advise(MapFile); strings.ContainsRune(got, '\x1b') {
		t.Errorf("%q, with what a terminal acts on", got)
	}
}

// Where Ollama or another program starts llama.cpp, the advice names the variable and whose environment it belongs to.
func TestStarter(t *testing.T) {
	root := programs(t)
	ollama := filepath.Join(root, "ollama")
	script := "#!/bin/sh\n\"$@\" &\necho $!\nwait\n"
	if err := os.WriteFile(ollama, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(ollama, filepath.Join(root, "now/llama-server"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() }()
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	waitAsleep(t, pid)
	const want = "start llama.cpp with --no-repack (in the environment of ollama, which starts it: LLAMA_ARG_NO_REPACK=1)"
	if got := OfProcess(pid).Advise(KeepLayout); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A real llama.cpp tells by its files which flags it has, and which types it can copy.
func TestRealFiles(t *testing.T) {
	testenv.NeedMachine(t)
	in, err := llama.Install(t.Context()) // not by llamatest, which depends on this package
	if errors.Is(err, llama.ErrUnavailable) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	common, err := filepath.Glob(filepath.Join(in.Dir, "libllama-common.so*"))
	if err != nil || len(common) == 0 {
		t.Skipf("this llama.cpp has no libllama-common: %v", err)
	}
	if f := searchFiles(common[:1]).features; !f.has(loadMode|oldFlags) || !f.has(noRepack) || f.has(benchUsage) {
		t.Errorf("%s: features %b", common[0], f)
	}
	p := OfCommand([]string{in.Driver}, nil)
	for _, want := range []gguf.Type{gguf.Q4_0, gguf.Q4_K} {
		if !p.builtFor[want] {
			t.Errorf("%s: no %s among the types that it copies: %v", in.Dir, want, p.builtFor)
		}
	}
	if p.builtFor[gguf.F16] || p.dialect() != unknown {
		t.Errorf("%+v", p)
	}
}

// ggml copies matrices of some types, by the processor, if their rows come in whole blocks.
func TestIsRepacked(t *testing.T) {
	x86 := []processor{{avx2: true}, {avx512: true, avx2: true}, {}}
	arm := processor{dotProduct: true}
	for _, tc := range []struct {
		of   gguf.Type
		rows int64
		want []bool // on each of x86, then on arm
	}{
		{gguf.Q4_0, 8, []bool{true, true, false, true}},
		{gguf.Q4_0, 4, []bool{false, false, false, true}},
		{gguf.Q4_K, 8, []bool{true, true, false, true}},
		{gguf.Q4_K, 12, []bool{false, false, false, false}},
		{gguf.Q2_K, 8, []bool{false, true, false, false}},
		{gguf.Q6_K, 8, []bool{false, false, false, true}},
		{gguf.Q8_0, 8, []bool{false, false, false, true}},
		{gguf.MXFP4, 8, []bool{true, true, false, true}},
		{gguf.F16, 8, []bool{false, false, false, false}},
	} {
		tensor := &gguf.Tensor{Name: "blk.0.ffn_up.weight", Type: tc.of, Shape: []int64{256, tc.rows}}
		for i, on := range append(slices.Clone(x86), arm) {
			if got := isRepacked(tensor, on); got != tc.want[i] {
				t.Errorf("%s with %d rows on %+v: %v", tc.of, tc.rows, on, got)
			}
		}
	}
}

// What a program copies depends on its build, its words, and which tensors are matrices.
func TestForesee(t *testing.T) {
	if !isRepacked(&gguf.Tensor{Type: gguf.Q4_K, Shape: []int64{256, 8}}, thisProcessor()) {
		t.Skip("ggml has no other layout for Q4_K on this processor")
	}
	plain := openModel(t, "token_embd", "blk.0.attn_q", "blk.0.ffn_up", "output")
	shared := openModel(t, "token_embd", "blk.0.attn_q", "blk.0.ffn_up")
	matrices, table, all := int64(0), int64(0), int64(0)
	for _, tensor := range plain.Files[0].Tensors {
		all += tensor.Size
		switch {
		case tensor.Name == "token_embd.weight":
			table = tensor.Size
		case tensor.Type == gguf.Q4_K:
			matrices += tensor.Size
		}
	}
	output, ok := plain.Lookup("output.weight")
	if !ok || table == 0 {
		t.Fatal("the model lacks a table or an output")
	}
	built := types{gguf.Q4_K: true}
	for name, tc := range map[string]struct {
		p     Program
		model *gguf.Model
		bytes int64
	}{
		"default":    {Program{builtFor: built}, plain, matrices},
		"tied":       {Program{builtFor: built}, shared, matrices - output.Tensor.Size + table},
		"not built":  {Program{builtFor: types{gguf.Q4_0: true}}, plain, 0},
		"kept":       {Program{builtFor: built, request: Request{InLayout: true}}, plain, 0},
		"on a GPU":   {Program{builtFor: built, gpu: true}, plain, 0},
		"not mapped": {Program{request: Request{Unmapped: []string{"-lm none"}}}, plain, all},
		"nor mapped": {Program{request: Request{Unmapped: []string{"-lm none"}, InLayout: true}}, plain, all},
	} {
		if got := tc.p.Foresee(tc.model); got.Bytes != tc.bytes {
			t.Errorf("%s: %+v, want %d bytes", name, got, tc.bytes)
		}
	}
}

// openModel opens a model of matrices in Q4_K, and a vector.
func openModel(t *testing.T, matrices ...string) *gguf.Model {
	t.Helper()
	m := gguftest.Model{Tensors: []gguftest.Tensor{{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{256}}}}
	for i, name := range matrices {
		shape := []int64{256, int64(64 * (i + 1))}
		m.Tensors = append(m.Tensors, gguftest.Tensor{Name: name + ".weight", Type: gguf.Q4_K, Shape: shape})
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	m.Write(t, path)
	opened, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}
