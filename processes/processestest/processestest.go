// Package processestest has a program for tests that stands for one which computes with ggml, or which starts others
// that do (standin.c).
package processestest

// This file compiles the program and starts it.

import (
	"bufio"
	_ "embed"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"tensorcast/internal/cc"
	"tensorcast/internal/testenv"
)

//go:embed standin.c
var source string

// Program compiles the program under a name, in a directory of its own. With ggml it has functions of ggml in it.
func Program(t testing.TB, name string, ggml bool) (path string) {
	t.Helper()
	testenv.NeedMachine(t)
	path = filepath.Join(testenv.PublicDir(t), name)
	var flags []string
	if ggml {
		flags = append(flags, "-DGGML")
	}
	if err := cc.Compile(t.Context(), path, source, flags...); err != nil {
		t.Fatal(err)
	}
	return path
}

// Library compiles a library that has functions of ggml, under a name that does not say so.
func Library(t testing.TB) (path string) {
	t.Helper()
	testenv.NeedMachine(t)
	path = filepath.Join(testenv.PublicDir(t), "engine.so")
	const library = "int ggml_add(int a, int b) { return a + b; }"
	if err := cc.Compile(t.Context(), path, library, "-shared", "-fPIC"); err != nil {
		t.Fatal(err)
	}
	return path
}

// Model writes a file that begins as a GGUF file does, under the name of a blob.
func Model(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sha256-"+strings.Repeat("0a", 32))
	if err := os.WriteFile(path, append([]byte("GGUF"), make([]byte, 4092)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Process is a running program.
type Process struct {
	*exec.Cmd
	t     testing.TB
	lines *bufio.Reader
	end   func()
}

// Start starts a command, which does not end before the test does, or End is called.
func Start(t testing.TB, command ...string) *Process {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{Cmd: cmd, t: t, lines: bufio.NewReader(stdout)}
	p.end = sync.OnceFunc(func() {
		stdin.Close()
		_, _ = io.Copy(io.Discard, p.lines)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.end)
	return p
}

// PID is the number of the process.
func (p *Process) PID() int { return p.Process.Pid }

// Next waits until the process, or one that it has started, has done everything or waits, and returns its number.
func (p *Process) Next() (pid int) {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		p.t.Fatalf("the program says %q, %v; want a process id", line, err)
	}
	return pid
}

// End ends the process and its children.
func (p *Process) End() { p.end() }
