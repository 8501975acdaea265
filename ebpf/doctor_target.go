package ebpf

// This file examines the files of a process or of a command: which hold ggml or llama.cpp, and what
// of them could be probed.

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"tensorcast/ggml"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/loadflags"
)

// examineTarget reports on the target's files.
func (r *Report) examineTarget(opts ExamineOptions) (*examinedTarget, error) {
	t := &examinedTarget{pid: opts.PID}
	switch {
	case opts.PID != 0:
		return t, r.examineProcess(t)
	case len(opts.Command) > 0:
		return t, r.examineCommand(t, opts.Command, opts.Env)
	}
	return t, nil
}

// examinedTarget is what was read about the target.
type examinedTarget struct {
	pid    int    // 0 for a command
	exe    string // executable of a command
	hidden bool   // the process's memory map cannot be read
	images []*ggml.Image
}

func (t *examinedTarget) hasRole(role ggml.Role) bool {
	return slices.ContainsFunc(t.images, func(im *ggml.Image) bool { return im.Has(role) })
}

// examineProcess examines what a process maps.
func (r *Report) examineProcess(t *examinedTarget) error {
	r.Target = &Target{PID: t.pid}
	entry, err := procfs.NewProc(t.pid)
	if err != nil {
		return fmt.Errorf("process %d: %w", t.pid, proc.ErrNoProcess)
	}
	if r.Target.Command, err = entry.CmdLine(); err != nil {
		r.Target.Command = nil // it is ending or its command line is hidden; the memory map will tell
	}
	files, err := proc.Mappings(t.pid)
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.hidden = true
		return nil
	case err != nil:
		return err
	}
	var paths []string
	for _, m := range files {
		path := m.Locate(t.pid).Path
		switch {
		case m.Executable:
			paths = append(paths, path)
		case !slices.Contains(r.Target.Models, m.Path) && isGGUF(path):
			r.Target.Models = append(r.Target.Models, m.Path)
		}
	}
	t.images = r.scanFiles(paths)
	return nil
}

// isGGUF reports whether a file begins like a GGUF file.
func isGGUF(path string) bool {
	f, err := regular.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	n, err := f.Read(magic[:])
	return err == nil && n == len(magic) && string(magic[:]) == "GGUF"
}

// examineCommand examines the files that a command would load.
func (r *Report) examineCommand(t *examinedTarget, command, env []string) error {
	r.Target = &Target{Command: command}
	exe, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("find %s: %w", command[0], err)
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real // as the dynamic loader resolves $ORIGIN
	}
	if line, ok := firstLineOf(exe); ok && strings.HasPrefix(line, "#!") {
		r.advise(
			"%s is a script (%s): ask about the program that it runs, or, while it runs, tracer doctor --pid N",
			exe,
			line,
		)
	}
	if p := loadflags.OfCommand(command, env); len(p.Request().Unmapped) > 0 {
		r.advise("without a mapping of the model file no tensor can be told: %s", p.Advise(loadflags.MapFile))
	}
	t.exe = exe
	t.images = r.scanFiles(append([]string{exe}, ggml.LikelyLibraries(exe, env)...))
	return nil
}

// firstLineOf returns the first line of a file, if it has one of at most 256 bytes.
func firstLineOf(path string) (string, bool) {
	f, err := regular.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(line)), true
}

// scanFiles reads each file once, and reports on those with ggml or llama.cpp. It returns the
// images of all that could be read.
func (r *Report) scanFiles(paths []string) []*ggml.Image {
	var images []*ggml.Image
	seen := map[proc.FileID]bool{}
	for _, path := range paths {
		key, err := proc.FileOf(path)
		if err != nil || seen[key] {
			continue // deleted, or in another mount namespace
		}
		seen[key] = true
		im, err := ggml.Scan(path)
		if err != nil {
			if strings.Contains(filepath.Base(path), "ggml") || strings.Contains(filepath.Base(path), "llama") {
				r.Target.Files = append(r.Target.Files, File{Path: path, Problem: firstLine(err)})
				r.advise("%s cannot be read: %s", path, firstLine(err))
			}
			continue
		}
		images = append(images, im)
		f := File{
			Path: path, Ops: len(im.Ops), Stripped: im.Stripped, Problem: problemOf(im),
			GGMLVersion: im.GGMLVersion, GGMLCommit: im.GGMLCommit, LlamaBuild: im.LlamaBuild,
		}
		if im.Layout != nil {
			f.Layout = im.Layout.Origin
		}
		for _, s := range im.Sites {
			f.Probes = append(
				f.Probes,
				Probe{Symbol: s.Symbol, Role: s.Role, Offset: s.Entry, Skip: s.Probe - s.Entry, Cost: s.Cost},
			)
		}
		if len(f.Probes) > 0 || f.Ops > 0 || f.LlamaBuild != "" || f.Problem != "" {
			r.Target.Files = append(r.Target.Files, f)
		}
	}
	return images
}

// problemOf says why the op names or the layout of a file could not be read; empty if they could,
// or if it has none.
func problemOf(im *ggml.Image) string {
	if err := cmp.Or(im.OpsErr, im.LayoutErr); err != nil {
		return firstLine(err)
	}
	return ""
}
