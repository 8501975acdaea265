package loadflags

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A Python with llama-cpp-python has no flag of llama.cpp: advice names the arguments of its class, or the flags of its
// server, and says that copies in another layout cannot be switched off by one.
func TestPython(t *testing.T) {
	const library, none = "/env/lib/python3.11/site-packages/llama_cpp/lib/libllama.so", "no argument against copies"
	for name, tc := range map[string]struct {
		words                   string
		mapped                  string
		layout, mapping, unlock string // parts of advice
	}{
		"a script": {
			"python3 ask.py", library, none, "load the model with use_mmap=True", "load the model with use_mlock=False",
		},
		"the server": {
			"python3 -m llama_cpp.server --model m.gguf", library, none, "start llama_cpp.server with --use_mmap true",
			"start llama_cpp.server with --use_mlock false (or in its environment: USE_MLOCK=false)",
		},
		"the server, told": {
			"python3 -m llama_cpp.server --use_mlock true", library, none, "with --use_mmap true",
			"with --use_mlock false",
		},
		"by uvicorn": {
			"python3 /env/bin/uvicorn llama_cpp.server.app:create_app --factory", library, none, "USE_MMAP=true",
			"USE_MLOCK=false",
		},
		"a file of settings": {
			"python3 -m llama_cpp.server --config_file=c.json", library, none, "load the model with use_mmap=True",
			"load the model with use_mlock=False",
		},
		"another host": {
			"python3 ask.py", "/usr/lib/libllama.so", "with --no-repack", "with --load-mode mmap", "without --mlock",
		},
		"a server that has not loaded it": {
			"python3 -m llama_cpp.server", "/usr/lib/libc.so", none, "with --use_mmap true", "with --use_mlock false",
		},
	} {
		p := OfWords(strings.Fields(tc.words), tc.mapped)
		p.running = true
		for change, want := range map[Change]string{KeepLayout: tc.layout, MapFile: tc.mapping, Unlock: tc.unlock} {
			got := p.Advise(change)
			if !strings.Contains(got, want) {
				t.Errorf("%s, change %d: %q, want %q", name, change, got, want)
			}
			if want == none && strings.Contains(got, "no-repack") {
				t.Errorf("%s: %q names a flag that Python does not have", name, got)
			}
		}
	}
}

// What a running Python maps tells that it has llama-cpp-python.
func TestPythonProcess(t *testing.T) {
	cmd := exec.Command(filepath.Join(programs(t), "env/python"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitAsleep(t, cmd.Process.Pid)
	const want = "load the model with use_mlock=False"
	if got := OfProcess(cmd.Process.Pid).Advise(Unlock); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
