package trace

// These tests are about a capture directory that other users can see, that somebody else has made,
// or that another tracer writes to as well.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/outfile"
	"tensorcast/internal/testenv"
	"tensorcast/trace/tables"
)

// A capture holds the prompt, so only its owner can read any of it.
func TestCapturesAreTheirOwners(t *testing.T) {
	x := newTarget(t, func(o *RecorderOptions) { follow(o); o.Detail = tables.DetailOpIO })
	x.decode(10, 3)
	x.decode(11, 1)
	_, err := x.s.Finish(nil)
	check(t, err)
	files := 0
	check(t, filepath.WalkDir(x.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files++
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v; want 0", path, info.Mode())
		}
		return nil
	}))
	if files != 1+2*(1+6) {
		t.Errorf("%d files; want %v", files, 1+2*(1+6))
	}
}

// Nothing is written to a directory in which somebody else can put links.
func TestDirectoryOfAnother(t *testing.T) {
	testenv.NeedRoot(t)
	const nobody = 65534
	dir := t.TempDir()
	precious := filepath.Join(t.TempDir(), "precious")
	check(t, os.WriteFile(precious, []byte("precious"), 0o600))
	for _, name := range []string{AccessFile, MetaFile, MetaFile + ".tmp"} {
		check(t, os.Symlink(precious, filepath.Join(dir, name)))
		check(t, os.Lchown(filepath.Join(dir, name), nobody, nobody))
	}
	for what, change := range map[string]func() error{
		"belongs to nobody":     func() error { return os.Chown(dir, nobody, nobody) },
		"everybody can write":   func() error { return errors.Join(os.Chown(dir, 0, 0), unix.Chmod(dir, 0o1777)) },
		"a group can write":     func() error { return errors.Join(os.Chown(dir, 0, nobody), unix.Chmod(dir, 0o770)) },
		"":                      func() error { return errors.Join(os.Chown(dir, 0, 0), unix.Chmod(dir, 0o755)) },
		"too: with a process's": func() error { return errors.Join(os.Chown(dir, 0, 0), unix.Chmod(dir, 0o755)) },
	} {
		check(t, change())
		if strings.HasPrefix(what, "too") {
			check(t, os.Mkdir(filepath.Join(dir, "17"), 0o755))
			check(t, os.Chown(filepath.Join(dir, "17"), nobody, nobody))
			what = "belongs to nobody"
		}
		if what == "" {
			continue // below: it replaces the links
		}
		for how, begin := range map[string]func() error{
			"Create":     func() error { _, err := Create(dir, &tables.Meta{}, nil); return err },
			"NewSession": func() error { _, err := NewSession(RecorderOptions{Dir: dir}); return err },
		} {
			if err := begin(); !errors.Is(err, outfile.ErrUnsafe) || !strings.Contains(err.Error(), what) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want that %q", how, err, what)
			}
		}
		_ = os.Remove(filepath.Join(dir, "17"))
	}
	check(t, os.Chown(dir, 0, 0))
	check(t, unix.Chmod(dir, 0o755))
	writeCapture(t, dir, testRows(3), nil)
	if data, err := os.ReadFile(precious); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v; want \"precious\"", data, err)
	}
}

// Only one tracer at a time writes to a directory. A second one fails before it has touched
// anything. Readers need not wait.
func TestOneWriterAtATime(t *testing.T) {
	for name, change := range map[string]func(*RecorderOptions){"one process": func(*RecorderOptions) {},
		"several": follow} {
		t.Run(name, func(t *testing.T) {
			x := newTarget(t, change)
			busy := func(when string, dirs ...string) {
				t.Helper()
				for _, dir := range dirs {
					for how, begin := range map[string]func() error{
						"Create":     func() error { _, err := Create(dir, &tables.Meta{}, nil); return err },
						"NewSession": func() error { _, err := NewSession(RecorderOptions{Dir: dir}); return err },
					} {
						if err := begin(); !errors.Is(err, ErrBusy) ||
							!strings.Contains(err.Error(), dir+" is being written by another tracer") {
							t.Errorf("%s, %s: %v; want %v, text with %v", when, how, err, ErrBusy,
								dir+" is being written by another tracer")
						}
					}
				}
			}
			busy("before the first weight", x.dir)
			x.decode(10, 3)
			dirs := []string{x.dir}
			if x.s.opts.Follow {
				dirs = append(dirs, filepath.Join(x.dir, "10"))
			}
			busy("while it writes", dirs...)
			c := open(t, dirs[len(dirs)-1])
			if _, err := readRows(c); err != nil || c.Meta.Complete {
				t.Errorf("a reader meanwhile got %+v and error %v, want an incomplete capture", c.Meta, err)
			}
			x.decode(10, 1)
			metas, err := x.s.Finish(nil)
			if err != nil || len(metas) != 1 || !metas[0].Complete || metas[0].Rows != 2 {
				t.Errorf("descriptions %+v and error %v, want one complete capture of 2 rows", metas, err)
			}
			if rows, err := readRows(open(t, metas[0].Dir)); err != nil || len(rows) != 2 {
				t.Errorf("%d rows, %v; want 2", len(rows), err)
			}
			writeCapture(t, x.dir, testRows(1), nil)
		})
	}
}

// A session that sees no weight leaves nothing behind, not even the directory that it made. What
// was there before stays.
func TestNothingToCapture(t *testing.T) {
	x := newTarget(t, func(*RecorderOptions) {})
	_, _ = x.s.Finish(nil) // the error is that there was no decode
	if _, err := os.Stat(x.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v; want %v", err, fs.ErrNotExist)
	}
	writeCapture(t, x.dir, testRows(3), nil)
	x = newTarget(t, func(o *RecorderOptions) { o.Dir = x.dir })
	_, _ = x.s.Finish(nil)
	if rows, err := readRows(open(t, x.s.opts.Dir)); err != nil || len(rows) != 3 {
		t.Errorf("%d rows, %v; want 3", len(rows), err)
	}
}

// Without token ids, captures of the same work on different tokens have equal tables. A warm-up is
// still told from a prompt.
func TestNoTokenIDs(t *testing.T) {
	capture := func(hide bool, first, second int32) (told string) {
		s := newScriptWith(t, tiny, func(o *RecorderOptions) {
			o.NoTokenIDs, o.Command, o.Detail = hide, []string{"llama-cli", "-p", fmt.Sprint("prompt ", first)},
				tables.DetailOpIO
		})
		s.sendFileSeen()
		table := s.source(event.TokenEmbeddings)
		page := func(id int32) {
			s.handle(event.PageIn{
				Time: s.time, File: fileID,
				Offset: (table.Offset + int64(id)*table.NB[1]) / 4096 * 4096, Bytes: 4096, PID: 1,
				TID: 7,
			})
		}
		for _, ids := range [][]int32{s.r.models[0].warmupIDs, {first, second}, {second}} {
			s.begin(1, int32(len(ids)))
			for _, id := range ids {
				page(id)
			}
			s.embed(ids...)
			s.end()
		}
		meta, c := s.finish()
		if meta.NoTokenIDs != hide || c.Meta.NoTokenIDs != hide || c.Meta.Command[0] != "llama-cli" {
			t.Errorf("description %+v, want NoTokenIDs %v and the command llama-cli", c.Meta, hide)
		}
		steps := stepsOf(t, c)
		var phases []tables.Phase
		for _, step := range steps {
			phases = append(phases, step.Phase)
			told += fmt.Sprint(step.TokenIDs)
		}
		if want := []tables.Phase{
			tables.PhaseWarmup, tables.PhasePrompt, tables.PhaseGeneration,
		}; !slices.Equal(phases, want) {
			t.Errorf("phases %v, want %v", phases, want)
		}
		rows, err := readRows(c)
		check(t, err)
		for _, r := range rows {
			told += fmt.Sprint(" ", r.Offset)
		}
		for _, r := range pageInsOf(t, c) {
			told += fmt.Sprint(" ", r.Offset, "+", r.Bytes)
			if r.Tensor >= 0 && (r.Offset < c.Structure[r.Tensor].Offset ||
				r.Offset+r.Bytes > c.Structure[r.Tensor].Offset+c.Structure[r.Tensor].Size) {
				t.Errorf("a page-in is not in its tensor: %+v", r)
			}
		}
		return told + fmt.Sprint(c.Meta.Command)
	}
	// The ids' rows are beyond the first page of the embeddings, because that page also holds other
	// tensors, whose page-ins are recorded.
	if a := capture(false, 105, 200); !strings.Contains(a, "[105 200][200]") || !strings.Contains(a, "prompt 105") {
		t.Errorf("with ids the capture tells %q; want a text with \"[105 200][200]\", a text with \"prompt 105\"", a)
	}
	a := capture(true, 105, 200)
	b := capture(true, 240, 161)
	if a != b || strings.Contains(a, "prompt") {
		t.Errorf("the captures hold\n%s, and\n%s; want the same, without prompt", a, b)
	}
}

// Without token ids, page-ins do not tell which rows of a table with a row for each token were read.
func TestNoTokenIDsOfTables(t *testing.T) {
	m := gguftest.Model{Alignment: 4096}
	names := []string{event.TokenEmbeddings, "per_layer_token_embd.weight", "output.weight"}
	for _, name := range names {
		m.Tensors = append(m.Tensors, gguftest.Tensor{Name: name, Type: gguf.F32, Shape: []int64{1024, 16}})
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	m.Write(t, path)
	f, err := gguf.Open(path)
	check(t, err)
	s := newScriptWith(t, tiny, func(o *RecorderOptions) { o.NoTokenIDs = true })
	s.handle(seenAt(0, fileID, path))
	var want []int64
	for i := range f.Tensors {
		offset := f.Tensors[i].Offset
		s.handle(event.PageIn{Time: s.time, File: fileID, Offset: offset + 5*4096, Bytes: 4096, PID: 1, TID: 7})
		if f.Tensors[i].Name == "output.weight" {
			offset += 5 * 4096
		}
		want = append(want, offset)
	}
	s.begin(1, 1)
	s.end()
	_, c := s.finish()
	var got []int64
	for _, r := range pageInsOf(t, c) {
		got = append(got, r.Offset)
	}
	if !slices.Equal(got, want) {
		t.Errorf("page-ins of %v at %v, want %v", names, got, want)
	}
}

// tmpfs mounts a file system with a capacity of so many bytes.
func tmpfs(t *testing.T, size int) string {
	t.Helper()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// On a full disk every call returns an error that names the user's file once. The capture is not
// complete. What fit can be read, even if there is room again when the capture ends.
func TestDiskFull(t *testing.T) {
	for size := 16 << 10; size < 1<<20; size *= 4 {
		disk := tmpfs(t, size)
		dir, filler := filepath.Join(disk, "capture"), filepath.Join(disk, "filler")
		check(t, os.WriteFile(filler, make([]byte, size/4), 0o600))
		meta := &tables.Meta{}
		w, err := Create(dir, meta, testStructure)
		if err == nil {
			for i := range 1 << 20 {
				r := tables.Access{
					Tensor: int32(i % 2), DataPtr: uint64(i) * 0x9E3779B97F4A7C15,
					Op: fmt.Sprint("OP", i%100),
				}
				if err = w.Access(&r); err != nil {
					break
				}
			}
			first := err
			before := sizeOf(t, filepath.Join(dir, AccessFile))
			check(t, os.Remove(filler))
			if err = w.Close(meta, true); err == nil || first != nil && err.Error() != first.Error() {
				t.Errorf("%d bytes: rows failed with %v, Close with %v; want the same error", size, first, err)
			}
			// nothing may be written behind a part of a batch
			if after := sizeOf(t, filepath.Join(dir, AccessFile)); first != nil && after != before {
				t.Errorf("%d bytes: the table has %d bytes, want %d as at the error", size, after, before)
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%d bytes: %v; want %v", size, err, unix.ENOSPC)
		}
		said := err.Error()
		if rest := strings.Replace(said, dir, "", 1); strings.Contains(rest, dir) || strings.Contains(rest, "tmp") ||
			strings.Count(rest, "no space left") != 1 || strings.Contains(rest, "\n") {
			t.Errorf("%d bytes: error %q, want one line that names the directory and the full disk once", size, said)
		}
		c, err := Open(dir)
		if errors.Is(err, ErrNoCapture) {
			continue // not even the first files fit
		}
		check(t, err)
		rows, err := readRows(c)
		if err != nil || c.Meta.Complete || meta.Complete || len(rows)%batchRows != 0 {
			t.Errorf("%d bytes: %d rows, error %v, %+v; want whole batches of an incomplete capture", size, len(rows),
				err, c.Meta)
		}
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	check(t, err)
	return info.Size()
}

// When an earlier capture is deleted, its description goes first. If the tracer is killed
// meanwhile, what is left is not taken for a capture.
func TestEarlierCaptureIsUndescribedFirst(t *testing.T) {
	dir := t.TempDir()
	writeCapture(t, dir, testRows(3), nil)
	d, err := outfile.OpenDir(dir, dirMode)
	check(t, err)
	defer d.Close()
	// The deletion ends at the first directory that somebody else has locked.
	other, err := d.OpenSub("1", dirMode)
	check(t, err)
	defer other.Close()
	check(t, other.Lock())
	if err := removeAll(d); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrNoCapture) {
		t.Error(err)
	}
}
