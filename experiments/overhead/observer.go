package overhead

// This file runs an observer, and checks in the target's memory whether its probes are set.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"

	"tensorcast/internal/proc"
)

// observerError says that an observer does not work here. The series goes on with the others.
type observerError struct{ message string }

func (e *observerError) Error() string { return e.message }

// observer is a running observer.
type observer struct {
	*proc.Group
	out string // directory for its output
}

func (o Observer) startsTarget() bool { return strings.Contains(o.Command, "{target}") }

// shell returns the command as arguments. The shell is replaced by the command (exec), so that signals reach it.
func (o Observer) shell(values *strings.Replacer) []string {
	return []string{"/bin/sh", "-c", "exec " + values.Replace(o.Command)}
}

func startObserver(ctx context.Context, spec Observer, target int) (*observer, error) {
	program, _, _ := strings.Cut(spec.Command, " ")
	if _, err := exec.LookPath(program); err != nil {
		return nil, &observerError{program + " is not installed"}
	}
	ggml, err := ggmlFile(target)
	if err != nil {
		return nil, err
	}
	out, err := os.MkdirTemp("", "overhead")
	if err != nil {
		return nil, err
	}
	args := spec.shell(strings.NewReplacer("{pid}", strconv.Itoa(target), "{ggml}", ggml, "{out}", proc.Quote(out)))
	g, err := proc.StartGroup(ctx, args...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", spec.Name, err), os.RemoveAll(out))
	}
	return &observer{g, out}, nil
}

// stop asks the observer to end, and waits for it.
func (o *observer) stop() error {
	if err := o.Stop(syscall.SIGINT); err != nil {
		return &observerError{err.Error()}
	}
	return nil
}

// kill ends the observer if it still runs, and removes its output. The receiver may be nil.
func (o *observer) kill() {
	if o == nil {
		return
	}
	o.Kill()
	_ = os.RemoveAll(o.out) // a directory left behind does not affect the results
}

// codeMappings lists the executable file mappings of a process.
func codeMappings(pid int) ([]*procfs.ProcMap, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return nil, err
	}
	all, err := p.ProcMaps()
	if err != nil {
		return nil, fmt.Errorf("memory map of process %d: %w", pid, err)
	}
	var code []*procfs.ProcMap
	for _, m := range all {
		if m.Perms.Execute && m.Inode != 0 {
			code = append(code, m)
		}
	}
	return code, nil
}

// ggmlFile returns the file with ggml's CPU code: the library libggml-cpu, or else the program.
func ggmlFile(pid int) (string, error) {
	code, err := codeMappings(pid)
	if err != nil {
		return "", err
	}
	for _, m := range code {
		if strings.HasPrefix(filepath.Base(m.Pathname), "libggml-cpu") {
			return m.Pathname, nil
		}
	}
	return os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
}

// countProbes counts the places where a process's code differs from the mapped files: the
// breakpoints of probes.
func countProbes(pid int) (int, error) {
	code, err := codeMappings(pid)
	if err != nil {
		return 0, err
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return 0, err
	}
	defer memory.Close()
	n := 0
	for _, m := range code {
		differing, err := countDifferences(memory, pid, m)
		if err != nil {
			return 0, fmt.Errorf("code of process %d: %w", pid, err)
		}
		n += differing
	}
	return n, nil
}

// countDifferences counts the places where a mapping differs from its file.
func countDifferences(memory *os.File, pid int, m *procfs.ProcMap) (int, error) {
	const chunk = 1 << 20
	file, err := os.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.StartAddr, m.EndAddr))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	have, want := make([]byte, chunk), make([]byte, chunk)
	n := 0
	for at := int64(0); at < int64(m.EndAddr-m.StartAddr); at += chunk {
		size := min(chunk, int64(m.EndAddr-m.StartAddr)-at)
		in, err := file.ReadAt(want[:size], m.Offset+at)
		if err != nil && !errors.Is(err, io.EOF) { // the last page exceeds the end of the file
			return 0, err
		}
		if _, err := memory.ReadAt(have[:in], int64(m.StartAddr)+at); err != nil {
			return 0, err
		}
		n += countPlaces(have[:in], want[:in])
	}
	return n, nil
}

// instruction is the largest number of bytes that a probe changes: a breakpoint has one byte on
// x86-64 and four on arm64, a call has five.
const instruction = 5

// countPlaces counts the places where a and b, which have the same length, differ.
func countPlaces(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	n := 0
	for i := 0; i < len(a); i++ {
		if a[i] != b[i] {
			n++
			i += instruction - 1
		}
	}
	return n
}
